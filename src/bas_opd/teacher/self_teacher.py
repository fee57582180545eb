"""p_theta-bar(. | view, question, response so far) for the selected rows and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bas_opd.compute.memory import in_smaller_batches
from bas_opd.model.batches import PromptGroup, group_by_prompt, micro_batches
from bas_opd.model.head import Head
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.model.weights import HeadWeights, ShadowWeights
from bas_opd.types import BudgetKind, Costs, Example, FullLogits, Hooks, Part, Rollouts, View

TeacherMode = Literal["ema", "frozen", "live"]
ViewSize = Callable[[Example], tuple[tuple[int, int], str]]
"""What a view will show: width and height of its picture, read without opening it, and its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalScores:
    """What a teacher in this process said, kept as hidden states: the head is applied in chunks."""

    hidden: Mapping[int, Tensor]  # scored row -> [token, hidden], detached
    head: HeadWeights | Head
    processed_tokens: int
    prefilled_prompts: int

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows that were scored: an overrun must be able to show."""
        return tuple(sorted(self.hidden))

    @property
    def scored_tokens(self) -> int:
        return sum(len(states) for states in self.hidden.values())

    def chunks(self, rows: Sequence[int], size: int) -> Iterator[FullLogits]:
        """Yield the logits of the packed tokens of `rows`, `size` tokens at a time."""
        for states in torch.cat([self.hidden[row] for row in rows]).split(size):
            yield FullLogits(self.head.logits(states))


class SelfTeacher:
    """The student's own network under slowly moving weights, with a view of its own.

    `ema` moves its weights after each valid update, `frozen` never; `live` has none and uses the
    student's. `view` decides what it sees of an example: for BAS-OPD, the crop. `size` is the size
    of that view; without it the cost of a prompt is not known in advance.
    """

    def __init__(
        self,
        model: VisionLanguageModel,
        view: View,
        *,
        mode: TeacherMode = "ema",
        tau: float = 0.05,
        tokens_per_batch: int = 16_384,
        offload: bool = False,
        hooks: Hooks | None = None,
        size: ViewSize | None = None,
    ) -> None:
        self.model = model
        self.view = view
        self.size = size
        self.hooks = hooks or Hooks()
        self.mode = mode
        self.tau = tau
        self.tokens_per_batch = tokens_per_batch
        self.weights = ShadowWeights(model, is_empty=mode == "live", offload=offload)
        self.splits_prompts = True
        """Whether the rows of a prompt may be computed in several batches, each with the prompt."""

    def costs(self, rollouts: Rollouts, rows: Sequence[int], kind: BudgetKind) -> Costs | None:
        """Return what querying each of `rows` would cost in tokens; no view is opened.

        A prompt is processed once for all its rows, and the last token of a response is never fed.
        To keep that price, this teacher never again splits the rows of a prompt.
        """
        if kind == "scored_tokens":
            return Costs(rows={row: int(rollouts.lengths[row]) for row in rows})
        if self.size is None:
            return None
        self.splits_prompts = False
        prompts = {row: rollouts.prompt_of(row) for row in rows}
        views = {number: self.size(rollouts.examples[number]) for number in prompts.values()}
        return Costs(
            rows={row: int(rollouts.lengths[row]) - 1 for row in rows},
            prompts=prompts,
            openings={n: self.model.processor.prompt_length(*view) for n, view in views.items()},
        )

    @torch.no_grad()
    def score(self, rollouts: Rollouts, rows: Sequence[int]) -> LocalScores:
        """Return the teacher's states on the response tokens of `rows` (Alg. 1, line 11).

        The view of each selected prompt is opened, encoded and prefilled once for all its selected
        rollouts; that of any other prompt is never opened. Without rows nothing is computed.
        """
        if not rows:
            return LocalScores(
                hidden={}, head=self.weights.head(), processed_tokens=0, prefilled_prompts=0
            )
        self.hooks.asked(rollouts.step, len(rows))
        groups = [self._as_viewed(rollouts, group) for group in group_by_prompt(rows, rollouts)]
        scores, self.tokens_per_batch = in_smaller_batches(
            lambda limit: self._score(rollouts, groups, limit),
            limit=self.tokens_per_batch,
            smallest=max(
                group.tokens_of_a_row if self.splits_prompts else group.tokens_of_all_rows
                for group in groups
            ),
            what="teacher pass",
            notice=self.hooks.notice,
        )
        return scores

    def follow(self) -> None:
        """Move the weights towards the student's, if this teacher is a moving average."""
        if self.mode == "ema":
            self.weights.follow(self.tau)

    def parts(self) -> dict[str, Part]:
        """Return what a checkpoint holds of the teacher."""
        return {"teacher": self.weights}

    def _score(self, rollouts: Rollouts, groups: Sequence[PromptGroup], tokens: int) -> LocalScores:
        hidden: dict[int, Tensor] = {}
        processed = prefilled = 0
        with self.weights.lent(), self.model.compute():
            for batch in micro_batches(groups, tokens, split_prompts=self.splits_prompts):
                self.hooks.poll()
                states = self.model.response_hidden(
                    batch.prompts, batch.prompt_of, batch.responses(rollouts)
                )
                lengths = [int(rollouts.lengths[row]) for row in batch.rows]
                hidden.update(zip(batch.rows, states.split(lengths), strict=True))
                processed += batch.shared_tokens(rollouts)
                prefilled += len(batch.groups)
        return LocalScores(
            hidden=hidden,
            head=self.weights.head(),
            processed_tokens=processed,
            prefilled_prompts=prefilled,
        )

    def _as_viewed(self, rollouts: Rollouts, group: PromptGroup) -> PromptGroup:
        image, question = self.view(rollouts.examples[group.number])
        return group.seen_as(self.model.processor.encode(image, question))


class FrozenTeacher(SelfTeacher):
    """Another network than the student's, often a larger one, which never changes.

    Its tokens must be the student's; prompts are built by its own processor. It is in no
    checkpoint: a run knows it by its files.
    """

    def __init__(
        self,
        model: VisionLanguageModel,
        view: View,
        *,
        tokens_per_batch: int = 16_384,
        hooks: Hooks | None = None,
        size: ViewSize | None = None,
    ) -> None:
        # The live weights of its own network.
        super().__init__(
            model, view, mode="live", tokens_per_batch=tokens_per_batch, hooks=hooks, size=size
        )

    def parts(self) -> dict[str, Part]:
        """Return nothing: a checkpoint holds what changes."""
        return {}
