"""p_theta-bar(. | crop, question, response so far) for the selected rows and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor
from torch.func import functional_call

from bas_opd.compute.memory import in_smaller_batches
from bas_opd.data.images import open_crop
from bas_opd.model.batches import PromptGroup, group_by_prompt, micro_batches
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.types import Hooks, Rollouts, TeacherScores

TeacherMode = Literal["ema", "frozen", "live"]


class CropTeacher:
    """The student's own network under slowly moving weights, looking at the crop.

    The teacher keeps an fp32 copy of the trainable weights only (with LoRA, of the adapter only)
    and lends it to the shared network while it scores; everything that training does not change
    exists once. `ema` moves the copy after each valid update, `frozen` never, `live` keeps none.
    """

    def __init__(
        self,
        model: VisionLanguageModel,
        *,
        mode: TeacherMode = "ema",
        tau: float = 0.05,
        tokens_per_batch: int = 16_384,
        hooks: Hooks | None = None,
    ) -> None:
        self.model = model
        self.hooks = hooks or Hooks()
        self.mode = mode
        self.tau = tau
        self.tokens_per_batch = tokens_per_batch
        self.weights: dict[str, Tensor] = {}
        if mode != "live":
            self.weights = {
                name: parameter.detach().to(torch.float32, copy=True)
                for name, parameter in model.trainable().items()
            }

    @torch.no_grad()
    def score(self, rollouts: Rollouts, rows: Sequence[int]) -> TeacherScores:
        """Return the teacher's states on the response tokens of `rows` (Alg. 1, line 11).

        Each selected prompt's crop is decoded, encoded and prefilled once for all its selected
        rollouts; the crop of a prompt without one is never opened.
        """
        groups = [self._crop_prompt(rollouts, g) for g in group_by_prompt(rows, rollouts)]
        scores, self.tokens_per_batch = in_smaller_batches(
            lambda limit: self._score(rollouts, groups, limit),
            limit=self.tokens_per_batch,
            smallest=max(group.tokens_of_a_row for group in groups),
            what="teacher pass",
            notice=self.hooks.notice,
        )
        return scores

    def _score(
        self, rollouts: Rollouts, groups: Sequence[PromptGroup], tokens: int
    ) -> TeacherScores:
        hidden: dict[int, Tensor] = {}
        processed = prefilled = 0
        with self._weights_in_place(), self.model.compute():
            for batch in micro_batches(groups, tokens):
                self.hooks.poll()
                states = self.model.response_hidden(
                    batch.prompts, batch.prompt_of, batch.responses(rollouts)
                )
                lengths = [int(rollouts.lengths[row]) for row in batch.rows]
                hidden.update(zip(batch.rows, states.split(lengths), strict=True))
                processed += batch.shared_tokens(rollouts)
                prefilled += len(batch.groups)
        # What was computed, not what was asked for: an overrun must be able to show.
        scored = tuple(sorted(hidden))
        return TeacherScores(
            rows=scored,
            hidden=tuple(hidden[row] for row in scored),
            head=self._head(),
            scored_tokens=sum(len(states) for states in hidden.values()),
            processed_tokens=processed,
            prefilled_prompts=prefilled,
        )

    @torch.no_grad()
    def follow(self) -> None:
        """Move the copy towards the student: theta-bar <- (1 - tau) theta-bar + tau theta."""
        if self.mode != "ema":
            return
        live = self.model.trainable()
        for name, weight in self.weights.items():
            weight.lerp_(live[name].detach().to(weight.dtype), self.tau)

    def _crop_prompt(self, rollouts: Rollouts, group: PromptGroup) -> PromptGroup:
        example = rollouts.examples[group.number]
        return group.seen_as(self.model.processor.encode(open_crop(example), example.question))

    @contextmanager
    def _weights_in_place(self) -> Iterator[None]:
        """Lend the teacher's weights to the network, and put the student's back in any case."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        live = self.model.trainable()
        for name, weight in self.weights.items():
            self.weights[name], live[name].data = live[name].data, weight

    def _head(self) -> Callable[[Tensor], Tensor]:
        """Return the teacher's projection to fp32 logits, for while the student's is in place."""
        head = self.model.head
        own = {
            local: self.weights[name]
            for name, parameter in self.model.trainable().items()
            for local, candidate in head.named_parameters()
            if parameter is candidate and name in self.weights
        }
        return lambda hidden: functional_call(head, own, (hidden.float(),))
