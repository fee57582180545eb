"""Token after token for many rows at once, whatever the rule that chooses them.

There are two ways. With a growing cache, rows that have ended leave the batch. With a cache of
fixed size nothing changes shape, so that on a GPU a whole step is one CUDA graph: starting the
kernels of a small model one by one takes ten times as long as running them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bas_opd.compute.memory import ran_out
from bas_opd.model.cache import cache_bytes, fill, fixed_cache
from bas_opd.model.vlm import Prefix, VisionLanguageModel
from bas_opd.types import Hooks, Prompt

# Rows that ended are dropped from the batch once they are at least this share of it: dropping
# copies the cache of all others.
LEAVING_SHARE = 1 / 8

FIXED_BYTES = 2 * 2**30
"""Bytes of all caches of fixed size that are kept. A batch that needs more has a growing cache,
from which rows that have ended leave."""

CHECK_EVERY = 4
"""Steps between two looks at whether all rows have ended; looking waits for the GPU."""

Choose: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From logits `[alive, vocab]`, the numbers of these rows, and their position `[1]`, a token for
each. On a GPU it is called once and replayed, so it must keep its results in the same tensors."""


class Decoder:
    """Decodes batches by one rule, up to `limit` tokens a row."""

    def __init__(
        self,
        model: VisionLanguageModel,
        choose: Choose,
        *,
        limit: int,
        hooks: Hooks | None = None,
    ) -> None:
        self.model, self.choose, self.limit = model, choose, limit
        self.hooks = hooks or Hooks()
        self._steps: dict[tuple[int, int], FixedSteps] = {}
        """By rows and capacity, the one used last at the end."""
        self._weights: tuple[int, ...] = ()
        """Where the weights lay that these steps read."""
        self._can_capture = True

    def __call__(self, prefix: Prefix, *, fixed: bool | None = None) -> tuple[Tensor, Tensor]:
        """Return tokens `[row, token]` and lengths `[row]`, the end token counted.

        `fixed` asks for a cache of fixed size; unset: on a GPU, where memory allows.
        """
        capacity = _capacity(prefix.cache.get_seq_length() + self.limit)
        size = cache_bytes(prefix.cache, capacity)
        if fixed is None:
            # A captured step reads weights where they were; gathered ones are freed after a phase.
            can_capture = self._can_capture and self.model.shards is None
            is_gpu = self.model.device.type == "cuda"
            fixed = is_gpu and can_capture and size <= FIXED_BYTES
        if not fixed:
            return self._decode_growing(prefix)
        steps = self._steps_for(prefix, capacity, size)
        return self._decode_growing(prefix) if steps is None else self._decode_fixed(steps, prefix)

    def release(self) -> None:
        """Free the caches of fixed size, before a smaller batch is tried."""
        self._steps.clear()

    def _decode_growing(self, prefix: Prefix) -> tuple[Tensor, Tensor]:
        # A row that has ended may be asked for once more before it leaves; its token is dropped.
        model, device, rows = self.model, self.model.device, len(prefix.last_hidden)
        tokens = torch.full((rows, self.limit), model.processor.pad_id, device=device)
        lengths = torch.zeros(rows, dtype=torch.long, device=device)
        ends = torch.tensor(model.processor.eos_ids, device=device)
        alive = torch.arange(rows, device=device)
        going = torch.ones(rows, dtype=torch.bool, device=device)
        for position in range(self.limit):
            self.hooks.poll()
            place = torch.tensor([position], device=device)
            token = self.choose(model.logits(prefix.last_hidden), alive, place)
            now = alive[going]
            tokens[now, position] = token[going]
            lengths[now] = position + 1

            going = going & ~torch.isin(token, ends)
            left = int(going.sum())
            if left == 0 or position + 1 == self.limit:
                break
            if len(alive) - left >= LEAVING_SHARE * len(alive):
                kept = going.nonzero()[:, 0]
                prefix, alive, token = prefix.rows(kept), alive[kept], token[kept]
                going = going[kept]
            _, prefix = model.extend(prefix, token[:, None])
        return tokens, lengths

    def _steps_for(self, prefix: Prefix, capacity: int, size: int) -> FixedSteps | None:
        """Return the steps for a prefix, or none if they cannot be captured."""
        # A captured step reads weights where they were. Weights that are lent may lie elsewhere.
        weights = tuple(p.data_ptr() for p in self.model.trainable().values())
        if weights != self._weights:
            self.release()
            self._weights = weights
        key = (len(prefix.last_hidden), capacity)
        steps = self._steps.pop(key, None)
        while self._steps and sum(kept.size for kept in self._steps.values()) + size > FIXED_BYTES:
            del self._steps[next(iter(self._steps))]
        if steps is None:
            try:
                steps = FixedSteps(self.model, self.choose, prefix, capacity, self.limit, size)
            except RuntimeError as error:
                if ran_out(error):
                    raise
                self._can_capture = False
                self.hooks.notice(
                    f"Decoding goes on without a CUDA graph, which is slower: {error}"
                )
                return None
        self._steps[key] = steps
        return steps

    def _decode_fixed(self, steps: FixedSteps, prefix: Prefix) -> tuple[Tensor, Tensor]:
        steps.load(prefix)
        for position in range(self.limit):
            self.hooks.poll()
            steps.take()
            if position % CHECK_EVERY == CHECK_EVERY - 1 and not bool(steps.going.any()):
                break
        return steps.tokens.clone(), steps.lengths.clone()


class FixedSteps:
    """Steps of decoding in tensors of fixed size; on a GPU one is captured and then replayed."""

    def __init__(
        self,
        model: VisionLanguageModel,
        choose: Choose,
        prefix: Prefix,
        capacity: int,
        limit: int,
        size: int,
    ) -> None:
        self.model, self.choose, self.size = model, choose, size
        rows, device = len(prefix.last_hidden), model.device

        def counts(size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.long, device=device)

        self.alive = torch.arange(rows, device=device)
        self.ends = torch.tensor(model.processor.eos_ids, device=device)
        self.tokens = torch.full((rows, limit), model.processor.pad_id, device=device)
        self.lengths, self.next_position = counts(rows), counts(rows)
        self.position, self.slot = counts(1), counts(1)
        self.going = torch.ones(rows, dtype=torch.bool, device=device)
        self.seen = torch.zeros(rows, capacity, dtype=torch.bool, device=device)
        self.hidden = torch.zeros_like(prefix.last_hidden)
        self.cache = fixed_cache(prefix.cache, capacity, self.slot)
        self.load(prefix)
        self._graph = None
        if device.type == "cuda":
            with torch.cuda.device(device):  # Streams and captures are of the current device.
                self._graph = self._captured()

    def load(self, prefix: Prefix) -> None:
        """Start anew from a prefix."""
        if self.model.fast_head is not None:
            self.model.fast_head.rounded()  # A captured step reads the copy, and does not make it.
        length = prefix.cache.get_seq_length()
        self.tokens.fill_(self.model.processor.pad_id)
        self.lengths.zero_()
        self.position.zero_()
        self.slot.fill_(length)
        self.next_position.copy_(prefix.next_position)
        self.going.fill_(True)
        self.seen.zero_()
        self.seen[:, :length] = True if prefix.mask is None else prefix.mask.bool()
        self.hidden.copy_(prefix.last_hidden)
        fill(self.cache, prefix.cache)

    def take(self) -> None:
        """Choose a token for every row, and compute the state behind it."""
        if self._graph is None:
            self._step()
        else:
            self._graph.replay()

    def _step(self) -> None:
        token = self.choose(self.model.logits(self.hidden), self.alive, self.position)
        kept = token.where(self.going, self.model.processor.pad_id)
        self.tokens.index_copy_(1, self.position, kept[:, None])
        self.lengths += self.going
        self.going &= (token[:, None] != self.ends).all(1)
        self.seen.index_fill_(1, self.slot, True)
        hidden = self.model.continued(self.cache, kept, self.next_position, self.seen)
        self.hidden.copy_(hidden)
        for count in (self.position, self.slot, self.next_position):
            count += 1

    def _captured(self) -> torch.cuda.CUDAGraph:
        first, start = self.slot.clone(), torch.cuda.Stream()
        start.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(start), self._no_kept_casts():
            for _ in range(2):
                self._step()
                self.position.zero_()
                self.slot.copy_(first)
        torch.cuda.current_stream().wait_stream(start)
        graph = torch.cuda.CUDAGraph()
        with (
            self._no_kept_casts(),
            torch.cuda.graph(graph, capture_error_mode="thread_local"),
        ):
            self._step()
        return graph

    def _no_kept_casts(self) -> AbstractContextManager[Any]:
        """Cast weights within the graph: casts that autocast keeps are of weights of today."""
        device = self.model.device.type
        if not torch.is_autocast_enabled(device):
            return nullcontext()
        return torch.autocast(device, dtype=self.model.precision, cache_enabled=False)


def _capacity(tokens: int) -> int:
    """Round up to 64, 96, 128, 192, 256 and so on, so that few sizes occur."""
    size = 64
    while size < tokens:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


def suppressed(model: VisionLanguageModel) -> Tensor:
    """Return the ids that no response contains, on the model's device."""
    return torch.tensor(model.processor.suppressed_ids, dtype=torch.long, device=model.device)


def groups_of_like_length(prompts: Sequence[Prompt], size: int) -> list[list[int]]:
    """Return which prompts are decoded together: those of like length, to pad little."""
    order = sorted(range(len(prompts)), key=lambda i: prompts[i].length)
    return [order[i : i + size] for i in range(0, len(order), size)]
