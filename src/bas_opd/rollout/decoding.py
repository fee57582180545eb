"""Token after token for many rows at once, whatever the rule that chooses them.

There are two ways. With a growing cache, rows that have ended leave the batch. With a cache of
fixed size nothing changes shape, so that on a GPU a whole step is one CUDA graph: starting the
kernels of a small model one by one takes ten times as long as running them. A large cache of fixed
size is exchanged for another when it is full, or when half of its rows have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bas_opd.compute.compiling import is_fast
from bas_opd.compute.memory import ran_out
from bas_opd.compute.memory import release as free_memory
from bas_opd.model.activations import Activations
from bas_opd.model.cache import cache_bytes, fill, fixed_cache, released
from bas_opd.model.rounded import RoundedLinears
from bas_opd.model.vlm import Prefix, VisionLanguageModel
from bas_opd.types import Hooks, Prompt

# Rows that ended are dropped from the batch once they are at least this share of it: dropping
# copies the cache of all others.
LEAVING_SHARE = 1 / 8

FIXED_BYTES = 2 * 2**30
"""Bytes of all caches of fixed size that are kept, on a GPU with little memory to spare. A batch
that needs more has a growing cache."""

LARGE_BYTES = 2**28
"""From this size on, a cache of fixed size is worth exchanging for a smaller or longer one."""

STRETCH = 128
"""Tokens that a large cache has room for at first; a further one has twice as many."""

DRAW_BYTES = 40
"""Of each logit, while tokens are drawn: noise is made of integers of 64 bits."""

CHECK_EVERY = 4
"""Steps between two looks at whether all rows have ended; looking waits for the GPU."""

Choose: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From logits `[alive, vocab]`, the numbers of these rows, and their position `[1]`, a token for
each. On a GPU it is called once and replayed, so it must keep its results in the same tensors. The
number after that of the last row may come too, several times: what is chosen for it is dropped."""


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
        self._places: tuple[int, ...] = ()
        """Where the weights lay that these steps read."""
        self._weights: RoundedLinears | None = None
        self._pool: Any = None
        """The memory that all graphs compute in; nothing in it outlives a step."""
        self._stream: torch.cuda.Stream | None = None
        """Where they are captured."""
        self._known: set[tuple[int, int]] = set()
        """Rows and capacities of what was captured before: their kernels should be loaded."""
        self._can_capture = True
        self._told: set[str] = set()

    def __call__(
        self, prefix: Prefix, *, repeats: int = 1, fixed: bool | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return tokens `[row, token]` and lengths `[row]`, the end token counted.

        Each row of the prefix, which is used up, is continued `repeats` times, by neighbouring
        rows. `fixed` asks for a cache of fixed size; unset: on a GPU, where memory allows.
        """
        if fixed is None:
            fixed = is_fast(self.model.device) and self._can_capture
        rows = Responses(self.model, repeats * len(prefix.last_hidden), self.limit)
        if fixed:
            prefix, repeats = self._decode_fixed(prefix, rows, repeats)
        if repeats > 1:
            prefix = prefix.rows(rows.alive // repeats)
        self._decode_growing(prefix, rows)
        return rows.tokens, rows.lengths

    def prefill(self, prompts: Sequence[Prompt]) -> Prefix:
        """Prefill prompts, if need be without what is kept of those before."""
        try:
            return self.model.prefill(prompts)
        except (RuntimeError, MemoryError) as error:
            if not (self._steps or self._weights) or not ran_out(error):
                raise
        # Outside the handler, which would keep the frames of the failed attempt alive.
        self.release()
        free_memory()
        self._tell(
            "A prefill had no room beside the caches of decoding. They are freed and their CUDA "
            "graphs captured again for each batch, which is slower. Smaller batches need less "
            "(rollout.prompts_per_batch, or --batch of `bas-opd eval`)."
        )
        return self.model.prefill(prompts)

    def release(self) -> None:
        """Free the caches of fixed size, their graphs and the rounded weights."""
        self._steps.clear()
        self._weights = self._pool = None

    def trim(self) -> None:
        """Free what is kept for the next batch if it is large: other phases need the memory.

        Captured steps of a sharded model go too: after a phase its weights have no place.
        """
        copies = 0 if self._weights is None else self._weights.size
        if self.model.shards is not None or copies + self._kept() > FIXED_BYTES:
            self.release()

    def _decode_growing(self, prefix: Prefix, rows: Responses) -> None:
        # A row that has ended may be asked for once more before it leaves; its token is dropped.
        model, device = self.model, self.model.device
        ends = torch.tensor(model.processor.eos_ids, device=device)
        alive, going = rows.alive, torch.ones_like(rows.alive, dtype=torch.bool)
        for position in range(rows.position, self.limit if len(alive) else 0):
            self.hooks.poll()
            place = torch.tensor([position], device=device)
            token = self.choose(model.logits(prefix.last_hidden), alive, place)
            now = alive[going]
            rows.tokens[now, position] = token[going]
            rows.lengths[now] = position + 1

            going = going & ~torch.isin(token, ends)
            left = int(going.sum())
            if left == 0 or position + 1 == self.limit:
                break
            if len(alive) - left >= LEAVING_SHARE * len(alive):
                kept = going.nonzero()[:, 0]
                prefix, alive, token = prefix.rows(kept), alive[kept], token[kept]
                going = going[kept]
            _, prefix = model.extend(prefix, token[:, None])

    def _decode_fixed(self, prefix: Prefix, rows: Responses, repeats: int) -> tuple[Prefix, int]:
        """Decode in caches of fixed size as far as they go.

        Returns the prefix of what is left, and how often its rows are still to be repeated.
        """
        torch.clear_autocast_cache()  # The steps have weights of their own, rounded once.
        # A captured step reads weights where they were. Weights that are lent or gathered may lie
        # elsewhere.
        places = tuple(p.data_ptr() for p in self.model.network.parameters())
        if places != self._places:
            self.release()
            self._places = places
        if self._weights is not None:
            self._weights.refresh()
        if self.model.fast_head is not None:
            self.model.fast_head.rounded()  # Else a captured step would round it for each token.
        stretch = STRETCH
        while len(rows.alive) and rows.position < self.limit:
            steps = self._steps_for(prefix, rows, stretch)
            if steps is None:
                break
            steps.load(prefix, rows, repeats)
            self._take_steps(steps, rows)
            prefix, repeats = steps.unload(rows), 1
            del steps  # Those that are no longer kept make room for the next.
            stretch *= 2
        return prefix, repeats

    def _take_steps(self, steps: FixedSteps, rows: Responses) -> None:
        """Take steps until the cache is full, the limit is reached, or enough rows have ended."""
        enough = len(steps.alive) // 2 if steps.size >= LARGE_BYTES else 0
        for taken in range(1, min(steps.room, self.limit - rows.position) + 1):
            self.hooks.poll()
            steps.take()
            if taken % CHECK_EVERY == 0 and int(steps.going.sum()) <= enough:
                break

    def _steps_for(self, prefix: Prefix, rows: Responses, stretch: int) -> FixedSteps | None:
        """Return steps for a prefix; none where memory is short or they cannot be captured."""
        length, left = prefix.cache.get_seq_length(), self.limit - rows.position
        count = _few(len(rows.alive)) if rows.position else len(rows.alive)
        capacity = _capacity(length + left)
        if _size(prefix, count, capacity) >= LARGE_BYTES:
            capacity = _capacity(length + min(left, stretch))
        size, room = _size(prefix, count, capacity), self._room()
        steps = self._steps.pop((count, capacity), None)
        while self._steps and self._kept() + size > room:
            del self._steps[next(iter(self._steps))]
        if size > room:
            self.trim()
            self._tell(
                f"Decoding goes on without a CUDA graph, which is slower: a cache for {count:,} "
                f"rows of {capacity:,} tokens takes {size / 1e9:.1f} GB, and {room / 1e9:.1f} GB "
                "may be used. Smaller batches have a smaller cache (rollout.prompts_per_batch, or "
                "--batch of `bas-opd eval`)."
            )
            return None
        if steps is None:
            try:
                steps = self._captured(prefix, rows, count=count, capacity=capacity, size=size)
            except RuntimeError as error:
                if ran_out(error):
                    raise
                self._can_capture = False
                self.release()
                self.hooks.notice(
                    f"Decoding goes on without a CUDA graph, which is slower: {error}"
                )
                return None
        self._steps[count, capacity] = steps
        return steps

    def _tell(self, text: str) -> None:
        """Say once what is slow, whatever numbers follow."""
        if (what := text.partition(":")[0]) not in self._told:
            self._told.add(what)
            self.hooks.notice(text)

    def _captured(
        self, prefix: Prefix, rows: Responses, *, count: int, capacity: int, size: int
    ) -> FixedSteps:
        if self._weights is None and (copies := self.model.rounded_linears()) is not None:
            copies.refresh()
            self._weights = copies
        if self.model.device.type == "cuda":
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            self._stream = self._stream or torch.cuda.Stream(self.model.device)
        capture = partial(
            FixedSteps,
            self.model,
            self.choose,
            prefix,
            rows=count,
            capacity=capacity,
            spare=len(rows.lengths),
            size=size,
            weights=self._weights,
            pool=self._pool,
            stream=self._stream,
        )
        is_known = (count, capacity) in self._known
        try:
            steps = capture(is_known=is_known)
        except RuntimeError as error:
            if not is_known or ran_out(error):
                raise
            steps = capture(is_known=False)  # Something was to be loaded after all.
        self._known.add((count, capacity))
        return steps

    def _kept(self) -> int:
        return sum(steps.size for steps in self._steps.values())

    def _room(self) -> int:
        """Return the bytes that all caches of fixed size may have together."""
        device = self.model.device
        if device.type != "cuda":
            return FIXED_BYTES
        free, total = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device)
        share = torch.cuda.memory.get_per_process_memory_fraction(device)
        free = min(free, int(share * total) - reserved)
        free += reserved - torch.cuda.memory_allocated(device)
        return max(FIXED_BYTES, (free + self._kept()) // 2)


class Responses:
    """The responses of a batch so far, and which of its rows go on."""

    def __init__(self, model: VisionLanguageModel, rows: int, limit: int) -> None:
        self.tokens = torch.full((rows, limit), model.processor.pad_id, device=model.device)
        self.lengths = torch.zeros(rows, dtype=torch.long, device=model.device)
        self.alive = torch.arange(rows, device=model.device)
        self.position = 0


class FixedSteps:
    """Steps of decoding in tensors of fixed size; on a GPU one is captured and then replayed.

    There may be more rows than a batch has. Spare ones never go on, and have the number `spare`.
    """

    def __init__(
        self,
        model: VisionLanguageModel,
        choose: Choose,
        prefix: Prefix,
        *,
        rows: int,
        capacity: int,
        spare: int,
        size: int,
        weights: RoundedLinears | None,
        pool: Any,
        stream: torch.cuda.Stream | None,
        is_known: bool,
    ) -> None:
        self.model, self.choose, self.size, self.weights = model, choose, size, weights
        self.capacity, self.room = capacity, 0
        device = model.device

        def counts(size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.long, device=device)

        self.alive = torch.full((rows,), spare, device=device)
        self.ends = torch.tensor(model.processor.eos_ids, device=device)
        self.tokens = torch.full((rows, capacity), model.processor.pad_id, device=device)
        self.lengths, self.next_position = counts(rows), counts(rows)
        self.position, self.slot, self.taken = counts(1), counts(1), counts(1)
        self.going = torch.zeros(rows, dtype=torch.bool, device=device)
        self.seen = torch.zeros(rows, capacity, dtype=torch.bool, device=device)
        self.hidden = prefix.last_hidden.new_zeros(rows, prefix.last_hidden.shape[1])
        self.cache = fixed_cache(prefix.cache, rows, capacity, self.slot)
        self._graph = None
        if stream is not None:
            self.slot.fill_(prefix.cache.get_seq_length())
            self.seen[:, 0] = True
            with torch.cuda.device(device):  # Streams and captures are of the current device.
                self._graph = self._captured(pool, stream, is_known=is_known)

    def load(self, prefix: Prefix, rows: Responses, repeats: int) -> None:
        """Start the rows that go on, `repeats` of them from each row of a prefix.

        The cache of the prefix is emptied, to save memory.
        """
        length, count = prefix.cache.get_seq_length(), len(rows.alive)
        self.room = self.capacity - length
        self.tokens.fill_(self.model.processor.pad_id)
        self.lengths.zero_()
        self.taken.zero_()
        self.position.fill_(rows.position)
        self.slot.fill_(length)
        self.alive.fill_(len(rows.lengths))
        self.alive[:count] = rows.alive
        self.next_position[:count] = prefix.next_position.repeat_interleave(repeats)
        self.going.fill_(False)
        self.going[:count] = True
        self.seen.zero_()
        self.seen[count:, 0] = True  # Attention to nothing is not a number.
        shown = None if prefix.mask is None else prefix.mask.bool()
        self.seen[:count, :length] = True if shown is None else shown.repeat_interleave(repeats, 0)
        self.hidden[:count] = prefix.last_hidden.repeat_interleave(repeats, 0)
        fill(self.cache, prefix.cache, repeats)
        prefix.cache.layers.clear()

    def unload(self, rows: Responses) -> Prefix:
        """Add what was chosen to the rows, drop those that ended, return the prefix of the rest."""
        taken, count = int(self.taken), len(rows.alive)
        reached = rows.position + taken
        rows.tokens[rows.alive, rows.position : reached] = self.tokens[:count, :taken]
        rows.lengths[rows.alive] += self.lengths[:count]
        kept = self.going[:count].nonzero()[:, 0]
        if reached == rows.tokens.shape[1]:
            kept = kept[:0]
        rows.alive, rows.position = rows.alive[kept], reached
        length = int(self.slot)
        return Prefix(
            cache=released(self.cache, kept, length),
            mask=self.seen[kept, :length].long(),
            next_position=self.next_position[kept],
            last_hidden=self.hidden[kept],
        )

    def take(self) -> None:
        """Choose a token for every row, and compute the state behind it."""
        if self._graph is None:
            with self._rounded():
                self._step()
        else:
            self._graph.replay()

    def _rounded(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.weights is None else self.weights.lent()

    def _step(self) -> None:
        token = self.choose(self.model.logits(self.hidden), self.alive, self.position)
        kept = token.where(self.going, self.model.processor.pad_id)
        self.tokens.index_copy_(1, self.taken, kept[:, None])
        self.lengths += self.going
        self.going &= (token[:, None] != self.ends).all(1)
        self.seen.index_fill_(1, self.slot, True)
        hidden = self.model.continued(self.cache, kept, self.next_position, self.seen)
        self.hidden.copy_(hidden)
        for count in (self.position, self.slot, self.next_position, self.taken):
            count += 1

    def _captured(
        self, pool: Any, stream: torch.cuda.Stream, *, is_known: bool
    ) -> torch.cuda.CUDAGraph:
        if not is_known:  # A step compiles kernels and allocates what libraries work in.
            first = self.slot.clone()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream), self._no_kept_casts(), self._rounded():
                self._step()
                self.position.zero_()
                self.taken.zero_()
                self.slot.copy_(first)
            torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with (
            self._no_kept_casts(),
            self._rounded(),
            torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
        ):
            self._step()
        return graph

    def _no_kept_casts(self) -> AbstractContextManager[Any]:
        """Cast small weights within the graph: casts that autocast keeps are of today's."""
        device = self.model.device.type
        if not torch.is_autocast_enabled(device):
            return nullcontext()
        return torch.autocast(device, dtype=self.model.precision, cache_enabled=False)


def decoding_bytes(
    kept: Activations, *, prompts: int, each: int, length: int, limit: int, copies: int = 0
) -> int:
    """Return what decoding takes on a GPU, beside the weights, if there is room for it.

    Caches are those of prompts of a length, and of `each` rows for every prompt; a larger one takes
    their place only while rows go on that need it. They and `copies`, the bytes of rounded weights,
    are there when the next prompts are prefilled, if there are any.
    """
    rows = prompts * each

    def size(capacity: int) -> int:
        return rows * (kept.cache_row + kept.cache_token * capacity)

    capacity = _capacity(length + limit)
    if size(capacity) >= LARGE_BYTES:
        capacity = _capacity(length + min(limit, STRETCH))
    prefilled = prompts * (kept.cache_row + kept.cache_token * length)
    return prefilled + size(capacity) + max(DRAW_BYTES * rows * kept.vocabulary, copies)


def _size(prefix: Prefix, rows: int, capacity: int) -> int:
    """Return the bytes of a cache of fixed size with this many rows like those of a prefix."""
    return cache_bytes(prefix.cache, capacity) * rows // len(prefix.last_hidden)


def _capacity(tokens: int) -> int:
    """Round up to 64, 80, 96, 112, 128, 160, 192 and so on, so that few sizes occur."""
    step = 16
    while 8 * step <= tokens:
        step *= 2
    return max(4 * step, -(-tokens // step) * step)


def _few(rows: int) -> int:
    """Round up to 1, 2, 3, 4, 6, 8, 12 and so on, so that few sizes occur."""
    size = 1
    while size < rows:
        size = size * 3 // 2 if size & (size - 1) == 0 and size > 1 else max(2, size * 4 // 3)
    return size


def suppressed(model: VisionLanguageModel) -> Tensor:
    """Return the ids that no response contains, on the model's device."""
    return torch.tensor(model.processor.suppressed_ids, dtype=torch.long, device=model.device)


def groups_of_like_length(prompts: Sequence[Prompt], size: int) -> list[list[int]]:
    """Return which prompts are decoded together: those of like length, to pad little."""
    order = sorted(range(len(prompts)), key=lambda i: prompts[i].length)
    return [order[i : i + size] for i in range(0, len(order), size)]
