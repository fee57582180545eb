"""The teacher and the student, each beside the ways that a step of others has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bas_opd.bench.floor import floor
from bas_opd.bench.sides import Comparison, Side, compare
from bas_opd.bench.subject import Subject
from bas_opd.data.views import crop_view
from bas_opd.distill.divergence import topk_divergence
from bas_opd.distill.loss import DistillSettings
from bas_opd.learn import (
    Distillation,
    Learner,
    Objective,
    ObjectivePart,
    OptimizerSettings,
    PackedRows,
)
from bas_opd.model.batches import group_by_prompt, micro_batches
from bas_opd.model.encoding import ViewEncoder, idle_threads
from bas_opd.teacher import SelfTeacher
from bas_opd.types import FullLogits, Rollouts, TeacherScores


def teaching(subject: Subject, *, repeats: int) -> Comparison:
    """The teacher over the selected rows beside the released way: all rows, each with its crop."""
    model, size = subject.model, subject.size
    rollouts = subject.rollouts()
    selected, every = subject.selected(rollouts), range(len(rollouts))
    # Threads open the crops for all sides, as in a run.
    views = ViewEncoder(model.processor, crop_view, threads=idle_threads(model.device))
    # One each: where memory runs out, the batches of one side must not become those of another.
    ours, shared, recorded = (
        SelfTeacher(model, crop_view, tokens_per_batch=size.micro_batch, views=views)
        for _ in range(3)
    )
    crop = model.processor.prompt_length((size.side // 2, size.side // 2), "?")
    return compare(
        "teacher",
        [
            Side(
                name="selected rows, shared (ours)",
                run=lambda: _score(ours, rollouts, selected),
                limit=lambda: ours.tokens_per_batch,
            ),
            Side(
                name="all rows, own crops (released)",
                run=lambda: _score_apart(subject, rollouts, views),
                required_share=0.30,
            ),
            Side(
                name="all rows, shared",
                run=lambda: _score(shared, rollouts, every),
                limit=lambda: shared.tokens_per_batch,
            ),
            floor(
                model,
                lambda: _score(recorded, rollouts, selected),
                limit=lambda: recorded.tokens_per_batch,
            ),
        ],
        shape=f"{_covered(rollouts, selected)}, crop prompts of about {crop:,} tokens, responses "
        f"of {size.tokens} in the mean",
        device=model.device,
        repeats=repeats,
    )


def updating(subject: Subject, *, repeats: int) -> Comparison:
    """The student's update by the selected rows beside that by all rows with their own prompts.

    The released way runs all rows and masks the loss of unselected ones, which spares no work. Its
    loss is the same, computed by plain PyTorch.
    """
    model, size = subject.model, subject.size
    rollouts = subject.rollouts()
    selected, every = subject.selected(rollouts), range(len(rollouts))
    scores = SelfTeacher(model, crop_view, tokens_per_batch=size.micro_batch).score(rollouts, every)
    ours = Distillation(scores, model.logits, DistillSettings(), model.fast_head)
    unfused = Distillation(scores, model.logits, DistillSettings())
    plain = PlainDistillation(scores, model.logits, DistillSettings())
    # One each: where memory runs out, the batches of one side must not become those of another.
    sharing, shared, recorded = (_learner(subject, share_prompts=True) for _ in range(3))
    apart = _learner(subject, share_prompts=False)
    for other in (apart, shared, recorded):
        other.optimizer = sharing.optimizer  # There is room for one pair of moments.

    def update(learner: Learner, rows: Sequence[int], objective: Objective) -> Callable[[], int]:
        return lambda: learner.update(rollouts, rows, objective).processed_tokens

    def limit(learner: Learner) -> Callable[[], int]:
        return lambda: learner.tokens_per_micro_batch

    mean = sum(prompt.length for prompt in rollouts.prompts) / len(rollouts.prompts)
    return compare(
        "student",
        [
            Side(
                name="selected rows, shared (ours)",
                run=update(sharing, selected, ours),
                limit=limit(sharing),
            ),
            Side(
                name="all rows, own prompts (released)",
                run=update(apart, every, plain),
                required_share=1 / 3,
                limit=limit(apart),
            ),
            Side(name="all rows, shared", run=update(shared, every, ours), limit=limit(shared)),
            floor(model, update(recorded, selected, unfused), limit=limit(recorded)),
        ],
        shape=f"{_covered(rollouts, selected)}, {mean:.0f} prompt tokens to {size.tokens} of a "
        "response in the mean; with the optimizer's step; released: loss by plain PyTorch",
        device=model.device,
        repeats=repeats,
    )


@dataclass(frozen=True, slots=True)
class PlainDistillation:
    """The divergence by plain PyTorch: all logits of a micro-batch at once, autograd."""

    teacher: TeacherScores
    head: Callable[[Tensor], Tensor]
    settings: DistillSettings

    def __call__(self, hidden: Tensor, packed: PackedRows) -> ObjectivePart:
        """Compare packed tokens with the teacher, and go back."""
        (scores,) = self.teacher.chunks(packed.rows, len(hidden))
        assert isinstance(scores, FullLogits)  # It is a teacher of this package.
        settings = self.settings
        divergence = topk_divergence(
            self.head(hidden),
            scores.logits,
            k=settings.k,
            alpha=settings.alpha,
            support=settings.support,
        )
        loss = divergence.sum() / self.teacher.scored_tokens
        loss.backward()
        return ObjectivePart(loss=loss.detach())


def _learner(subject: Subject, *, share_prompts: bool) -> Learner:
    """Return a learner whose steps change no weight, so that all sides compute the same."""
    settings = OptimizerSettings(
        learning_rate=0.0,
        tokens_per_micro_batch=subject.size.micro_batch,
        share_prompts=share_prompts,
    )
    return Learner(subject.model, settings)


def _covered(rollouts: Rollouts, rows: Sequence[int]) -> str:
    touched = len({rollouts.prompt_of(row) for row in rows})
    return f"{len(rows)} of {len(rollouts)} rows on {touched} of {len(rollouts.prompts)} prompts"


@torch.no_grad()
def _score(teacher: SelfTeacher, rollouts: Rollouts, rows: Sequence[int]) -> int:
    """Score rows as training does, and project the tokens."""
    scores = teacher.score(rollouts, rows)
    for _ in scores.chunks(scores.rows, 1024):
        pass
    return scores.processed_tokens


@torch.no_grad()
def _score_apart(subject: Subject, rollouts: Rollouts, views: ViewEncoder) -> int:
    """Score all rows, each with its own crop prompt, and project the tokens."""
    model = subject.model
    groups = group_by_prompt(range(len(rollouts)), rollouts)
    views.expect(rollouts.examples[group.number] for group in groups)
    crops = [group.seen_as(views(rollouts.examples[group.number])) for group in groups]
    processed = 0
    for batch in micro_batches(crops, subject.size.micro_batch, share_prompts=False):
        with model.compute():
            hidden = model.response_hidden(
                batch.prompts, batch.prompt_of, batch.responses(rollouts), share_prompts=False
            )
        for states in hidden.split(1024):
            model.logits(states)
        processed += batch.unshared_tokens(rollouts)
    return processed
