"""p_theta-bar(. | view, question, response so far) for the selected rows and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

import torch
from torch import Tensor

from bas_opd.compute.memory import in_smaller_batches
from bas_opd.compute.world import World
from bas_opd.model.batches import MicroBatch, PromptGroup, group_by_prompt, micro_batches, shares
from bas_opd.model.encoding import ViewEncoder
from bas_opd.model.head import Head
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.model.weights import HeadWeights, ShadowWeights
from bas_opd.types import (
    BudgetKind,
    Costs,
    DistantPrompt,
    Example,
    FullLogits,
    Hooks,
    Part,
    Prompt,
    Rollouts,
    View,
)

T = TypeVar("T")
TeacherMode = Literal["ema", "frozen", "live"]
ViewSize = Callable[[Example], tuple[tuple[int, int], str]]
"""What a view will show: width and height of its picture, read without opening it, and its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalScores:
    """What a teacher in this process said, kept as hidden states: the head is applied in chunks.

    Of several processes each has the states of its own rows, and the counts of all.
    """

    hidden: Mapping[int, Tensor]  # scored row -> [token, hidden], detached
    head: HeadWeights | Head
    processed_tokens: int
    prefilled_prompts: int
    elsewhere: tuple[tuple[int, int], ...] = ()
    """Rows that other processes scored, each with its tokens."""
    support: None = None
    rescored_tokens: int = 0

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows that were scored: an overrun must be able to show."""
        return tuple(sorted([*self.hidden, *(row for row, _ in self.elsewhere)]))

    @property
    def scored_tokens(self) -> int:
        """Tokens of these rows, in whatever process."""
        own = sum(len(states) for states in self.hidden.values())
        return own + sum(tokens for _, tokens in self.elsewhere)

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

    what = "teacher pass"

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
        world: World | None = None,
        views: ViewEncoder | None = None,
    ) -> None:
        self.model = model
        self.world = world or World()
        self.views = views or ViewEncoder(model.processor, view)
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
        size = self.size
        views = self.world.each(
            lambda: {number: size(rollouts.examples[number]) for number in prompts.values()}
        )
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
        share = shares(group_by_prompt(rows, rollouts), self.world.size)[self.world.rank]
        self.views.expect(rollouts.examples[group.number] for group in share)
        try:
            # On disk before any rank makes them.
            self.world.led(lambda: self.hooks.asked(rollouts.step, len(rows)))
            groups: list[PromptGroup] = []
            smallest = self.world.together(lambda: self._open(rollouts, share, groups))
            scores, self.tokens_per_batch = in_smaller_batches(
                lambda limit: self._score(rollouts, groups, limit),
                limit=self.tokens_per_batch,
                smallest=max(smallest),
                what=self.what,
                notice=self.hooks.notice,
                advice=self.world.advice,
            )
        finally:
            self.views.expect()
        return scores

    def follow(self) -> None:
        """Move the weights towards the student's, if this teacher is a moving average."""
        if self.mode == "ema":
            self.hooks.settle()
            self.weights.follow(self.tau)

    def close(self) -> None:
        """Open no further picture."""
        self.views.close()

    def parts(self) -> dict[str, Part]:
        """Return what a checkpoint holds of the teacher."""
        return {"teacher": self.weights}

    def _open(
        self, rollouts: Rollouts, share: Sequence[PromptGroup], groups: list[PromptGroup]
    ) -> int:
        """Fill `groups` with the teacher's views, and return the smallest limit on a batch."""
        for group in share:
            groups.append(group.seen_as(self._prompt(rollouts.examples[group.number])))
        return max(
            (
                group.tokens_of_a_row if self.splits_prompts else group.tokens_of_all_rows
                for group in groups
            ),
            default=0,
        )

    def _prompt(self, example: Example) -> Prompt | DistantPrompt:
        """Return a prompt, or only its length where the first batches need not wait for it."""
        if not self.views.is_ahead or self.size is None:
            return self.views(example)
        length = self.model.processor.prompt_length(*self.size(example))
        return DistantPrompt(length, partial(self.views, example))

    def _score(self, rollouts: Rollouts, groups: Sequence[PromptGroup], tokens: int) -> LocalScores:
        hidden: dict[int, Tensor] = {}
        batches = list(
            micro_batches(
                groups,
                tokens,
                split_prompts=self.splits_prompts,
                part_tokens=self.model.part_tokens,
            )
        )

        def work(batches: Sequence[MicroBatch]) -> tuple[dict[int, int], int, int]:
            rows: dict[int, int] = {}
            processed = prefilled = 0
            for batch in batches:
                self.hooks.poll()
                states = self.model.response_hidden(
                    batch.prompts, batch.prompt_of, batch.responses(rollouts)
                )
                lengths = [int(rollouts.lengths[row]) for row in batch.rows]
                hidden.update(zip(batch.rows, states.split(lengths), strict=True))
                rows.update(zip(batch.rows, lengths, strict=True))
                processed += batch.shared_tokens(rollouts)
                prefilled += len(batch.groups)
            return rows, processed, prefilled

        shards = self.model.shards
        with self.weights.lent(), self.model.compute():
            turns = [batches]
            if shards is not None and shards.is_by_layer:
                # Ranks meet in each batch, so who has fewer takes part in those of the others.
                most = max(self.world.gather(len(batches)))
                turns = [batches[turn : turn + 1] for turn in range(most)]
            done = [
                (rank, *found)
                for turn in turns
                for rank, found in enumerate(self.world.together(partial(self._turn, work, turn)))
            ]
        return LocalScores(
            hidden=hidden,
            head=self.weights.head(),
            processed_tokens=sum(processed for _, _, processed, _ in done),
            prefilled_prompts=sum(prefilled for *_, prefilled in done),
            elsewhere=tuple(
                row for rank, rows, _, _ in done if rank != self.world.rank for row in rows.items()
            ),
        )

    def _turn(self, work: Callable[[Sequence[MicroBatch]], T], batches: Sequence[MicroBatch]) -> T:
        return self.model.exchanging(partial(work, batches), share_prompts=True)


class FrozenTeacher(SelfTeacher):
    """Another network than the student's, often a larger one, which never changes.

    Its tokens must be the student's; prompts are built by its own processor. It is in no
    checkpoint: a run knows it by its files. One in host memory comes to the device layer by layer.
    """

    def __init__(
        self,
        model: VisionLanguageModel,
        view: View,
        *,
        tokens_per_batch: int = 16_384,
        hooks: Hooks | None = None,
        size: ViewSize | None = None,
        world: World | None = None,
        views: ViewEncoder | None = None,
    ) -> None:
        if model.shards is None and model.device.type == "cpu":
            # A mapped file may begin anywhere, on which a CPU's rounding depends; so it rounds here
            # as with weights that come from host memory or from other ranks.
            for parameter in model.network.parameters():
                parameter.data = parameter.data.clone()
        # The live weights of its own network.
        super().__init__(
            model,
            view,
            mode="live",
            tokens_per_batch=tokens_per_batch,
            hooks=hooks,
            size=size,
            world=world,
            views=views,
        )

    def parts(self) -> dict[str, Part]:
        """Return nothing: a checkpoint holds what changes."""
        return {}
