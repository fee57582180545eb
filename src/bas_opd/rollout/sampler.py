"""The in-process engine: a prompt is prefilled once, its cache repeated, finished rows leave."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from bas_opd.compute.memory import in_smaller_batches
from bas_opd.compute.world import World
from bas_opd.errors import DataError, ModelError
from bas_opd.model.encoding import ViewEncoder
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.rollout.decoding import Decoder, groups_of_like_length, suppressed
from bas_opd.rollout.draws import row_keys
from bas_opd.rollout.race import Race
from bas_opd.types import (
    DistantPrompt,
    Example,
    Hooks,
    Part,
    Prompt,
    PromptBatch,
    Rollouts,
    View,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """How responses are drawn."""

    seed: int = 42
    per_prompt: int = 8
    temperature: float = 1.0
    top_p: float = 1.0
    max_response_tokens: int = 1024
    max_prompt_tokens: int = 8192
    prompts_per_batch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """The valid tokens of some rows, one row after another: what a rank sends to all others."""

    lengths: Tensor  # [row] int32
    tokens: Tensor  # [token] int32
    logprobs: Tensor  # [token] fp32
    entropies: Tensor  # [token] fp32


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Responses of some rows: those of a batch on the model's device, of a rank on the host."""

    tokens: Tensor  # [row, token]
    lengths: Tensor  # [row]
    logprobs: Tensor  # [row, token]
    entropies: Tensor  # [row, token]

    @classmethod
    def joined(cls, parts: Sequence[Packed], prompts: int, per_prompt: int, pad_id: int) -> Drawn:
        """Return the responses of all ranks in the order of their prompts."""
        dealt = [range(rank, prompts, len(parts)) for rank in range(len(parts))]
        rows = torch.cat([_rows_of_prompts(numbers, per_prompt) for numbers in dealt])
        lengths = torch.cat([part.lengths for part in parts]).long()
        drawn = cls.empty(len(rows), max([1, *lengths.tolist()]), pad_id)
        drawn.lengths[rows] = lengths
        first = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
        where = rows.repeat_interleave(lengths), torch.arange(len(first)) - first
        drawn.tokens[where] = torch.cat([part.tokens for part in parts]).long()
        drawn.logprobs[where] = torch.cat([part.logprobs for part in parts])
        drawn.entropies[where] = torch.cat([part.entropies for part in parts])
        return drawn

    @classmethod
    def empty(cls, rows: int, tokens: int, pad_id: int) -> Drawn:
        """Return room for responses, on the host."""
        return cls(
            tokens=torch.full((rows, tokens), pad_id),
            lengths=torch.zeros(rows, dtype=torch.long),
            logprobs=torch.zeros((rows, tokens)),
            entropies=torch.zeros((rows, tokens)),
        )

    def put(self, part: Drawn, prompts: Sequence[int], per_prompt: int) -> None:
        """Copy the responses of some prompts to the rows of these."""
        where, width = _rows_of_prompts(prompts, per_prompt), part.tokens.shape[1]
        self.tokens[where, :width] = part.tokens.cpu()
        self.lengths[where] = part.lengths.cpu()
        self.logprobs[where, :width] = part.logprobs.cpu()
        self.entropies[where, :width] = part.entropies.cpu()

    def packed(self) -> Packed:
        """Return the valid tokens: most responses are far shorter than the longest."""
        valid = torch.arange(self.tokens.shape[1]) < self.lengths[:, None]
        return Packed(
            lengths=self.lengths.int(),
            tokens=self.tokens[valid].int(),
            logprobs=self.logprobs[valid],
            entropies=self.entropies[valid],
        )


class Sampler:
    """The full-image policy p_theta as a source of rollouts (Alg. 1, line 3)."""

    def __init__(
        self,
        model: VisionLanguageModel,
        view: View,
        settings: SamplingSettings,
        hooks: Hooks | None = None,
        world: World | None = None,
        views: ViewEncoder | None = None,
    ) -> None:
        self.model = model
        self.world = world or World()
        self.views = views or ViewEncoder(model.processor, view)
        self.settings = settings
        self.hooks = hooks or Hooks()
        self.prompts_per_batch = settings.prompts_per_batch or sys.maxsize
        self.use_graphs: bool | None = None
        """Whether decoding has a cache of fixed size; unset: where device and model allow."""
        self._race = Race(
            limit=settings.max_response_tokens,
            temperature=settings.temperature,
            top_p=settings.top_p,
            suppressed=suppressed(model),
        )
        self._decode = Decoder(
            model, self._race, limit=settings.max_response_tokens, hooks=self.hooks
        )

    @torch.no_grad()
    def generate(self, batch: PromptBatch) -> Rollouts:
        """Draw `per_prompt` responses for every example of the batch."""
        own, prompts = dealt(batch, self.world, self.views, self._encode)
        most = min(self.prompts_per_batch, max(1, -(-len(batch.examples) // self.world.size)))
        parts, fitted = in_smaller_batches(
            lambda limit: self._sample(batch, own, limit),
            limit=most,
            smallest=1,
            what="rollout",
            notice=self.hooks.notice,
            advice=self.world.advice,
        )
        self._decode.trim()
        if fitted < most:  # memory ran out; a batch of few prompts limits no later one
            self.prompts_per_batch = fitted
        each, pad_id = self.settings.per_prompt, self.model.processor.pad_id
        drawn = Drawn.joined(parts, len(batch.examples), each, pad_id)
        return Rollouts(
            step=batch.step,
            examples=batch.examples,
            prompts=prompts,
            per_prompt=each,
            tokens=drawn.tokens,
            lengths=drawn.lengths,
            logprobs=drawn.logprobs,
            entropies=drawn.entropies,
        )

    def load_weights(self, named: Mapping[str, Tensor], version: int) -> None:
        """Nothing to load: the sampler computes with the student's own parameters."""

    def parts(self) -> dict[str, Part]:
        """Return nothing: every draw has an address."""
        return {}

    def close(self) -> None:
        """Free the caches that decoding keeps, and open no further picture."""
        self._decode.release()
        self.views.close()

    def _sample(
        self, batch: PromptBatch, prompts: Mapping[int, Prompt], prompts_per_batch: int
    ) -> list[Packed]:
        """Draw the responses of this rank's prompts, by their numbers; return those of all."""

        def work() -> Packed:
            numbers, own = list(prompts), list(prompts.values())
            rows, limit = len(own) * self.settings.per_prompt, self.settings.max_response_tokens
            drawn = Drawn.empty(rows, limit, self.model.processor.pad_id)
            for group in groups_of_like_length(own, prompts_per_batch):
                some = self._draw([own[i] for i in group], [numbers[i] for i in group], batch)
                check_finite(some, batch.step)
                drawn.put(some, group, self.settings.per_prompt)
            return drawn.packed()

        with self.model.gathered(), self.model.compute():
            return self.world.together(work)

    def _encode(self, example: Example) -> Prompt:
        return encode(self.views, example, self.settings.max_prompt_tokens)

    def _draw(self, prompts: Sequence[Prompt], numbers: Sequence[int], batch: PromptBatch) -> Drawn:
        device, each = self.model.device, self.settings.per_prompt
        rows, limit = len(prompts) * each, self.settings.max_response_tokens
        keys = batch_keys(self.settings, batch, numbers).to(device)
        if not self._race.has_room(rows):
            self._decode.release()  # Its steps hold the tensors that are replaced now.
            self._race.make_room(rows)
        self._race.keys[:rows] = keys
        prefix = self._decode.prefill(prompts)
        try:
            tokens, lengths = self._decode(prefix, repeats=each, fixed=self.use_graphs)
        except (RuntimeError, MemoryError):  # Memory that ran out is what they hold.
            self._decode.release()
            raise
        # Rows that have ended are measured until they leave; nothing of that is theirs.
        beyond = torch.arange(limit, device=device) >= lengths[:, None]
        return Drawn(
            tokens=tokens,
            lengths=lengths,
            logprobs=self._race.logprobs[:rows].masked_fill(beyond, 0.0),
            entropies=self._race.entropies[:rows].masked_fill(beyond, 0.0),
        )


class CopySampler(Sampler):
    """A sampler with a network of its own, which can draw while the student is trained."""

    @torch.no_grad()
    def load_weights(self, named: Mapping[str, Tensor], version: int) -> None:
        """Copy the student's weights into the network."""
        own = dict(self.model.network.named_parameters())
        for name, weight in named.items():
            own[name].copy_(weight.detach())
        if self.model.fast_head is not None:
            self.model.fast_head.forget()


def dealt(
    batch: PromptBatch, world: World, views: ViewEncoder, encode: Callable[[Example], Prompt]
) -> tuple[dict[int, Prompt], tuple[Prompt | DistantPrompt, ...]]:
    """Deal the prompts of a batch to the ranks in turn; each encodes its own.

    Returns those of this rank by their numbers, and all: of another rank's the length is known.
    """
    ranks = world.size
    own = (each[world.rank :: ranks] for each in (batch.examples, batch.upcoming))
    views.expect(chain.from_iterable(own))
    prompts: dict[int, Prompt] = {}

    def work() -> dict[int, int]:
        mine = range(world.rank, len(batch.examples), ranks)
        prompts.update({i: encode(batch.examples[i]) for i in mine})
        return {i: prompt.length for i, prompt in prompts.items()}

    lengths = {i: n for part in world.together(work) for i, n in part.items()}
    return prompts, tuple(
        prompts.get(i) or DistantPrompt(lengths[i], partial(encode, example))
        for i, example in enumerate(batch.examples)
    )


def encode(views: ViewEncoder, example: Example, most: int) -> Prompt:
    """Return the prompt of an example; one of more tokens than `most` is refused."""
    prompt = views(example)
    if prompt.length > most:
        raise DataError(
            f"The prompt of example {example.id!r} has {prompt.length:,} tokens, image included; "
            f"at most {most:,} are allowed. Prepare the data with --model to find such rows "
            "beforehand, raise data.max_prompt_tokens, or lower model.max_pixels."
        )
    return prompt


def batch_keys(settings: SamplingSettings, batch: PromptBatch, prompts: Sequence[int]) -> Tensor:
    """Return the keys of all rollouts of some prompts of a batch, by their numbers."""
    each = settings.per_prompt
    return row_keys(
        settings.seed,
        batch.step,
        torch.tensor(prompts, dtype=torch.long).repeat_interleave(each),
        torch.arange(each).repeat(len(prompts)),
        batch.round,
    )


def check_finite(drawn: Drawn, step: int) -> None:
    """Refuse log-probs that are not numbers."""
    if not drawn.logprobs.isfinite().all():
        raise ModelError(
            f"The model gave probabilities that are not numbers while sampling step {step}: its "
            "weights are damaged or have diverged. Check the model, or lower optim.learning_rate."
        )


def _rows_of_prompts(numbers: Sequence[int], per_prompt: int) -> Tensor:
    return (
        torch.tensor(numbers, dtype=torch.long)[:, None] * per_prompt + torch.arange(per_prompt)
    ).flatten()
