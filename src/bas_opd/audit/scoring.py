"""The utility audit: every candidate of several batches, scored under one frozen checkpoint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from bas_opd.audit.records import Candidate, Source, UtilityAudit
from bas_opd.audit.subject import Subject
from bas_opd.compute.memory import in_smaller_batches
from bas_opd.distill.divergence import student_topk
from bas_opd.distill.utility import token_utility
from bas_opd.errors import DataError
from bas_opd.learn.learner import Learner
from bas_opd.model.batches import PromptGroup, group_by_prompt, micro_batches
from bas_opd.run.progress import Progress
from bas_opd.run.state import TrainState
from bas_opd.select import LearnedSelector, RegressedSelector, Selector, rollout_features
from bas_opd.types import FEATURES, Features, PromptBatch, Rollouts, TeacherScores


def audit_utility(
    subject: Subject, progress: Progress, *, batches: int = 10, held_out: Path | None = None
) -> UtilityAudit:
    """Score all candidates of the batches that would follow the run, or of a held-out set.

    The selector is frozen: nothing is learnt and its normaliser stays (Figure 3).
    """
    source: Source = "training" if held_out is None else "held-out"
    data = subject.training_set() if held_out is None else subject.held_out_set(held_out)
    step = subject.restore_newest()
    progress.start(batches, f"utility, {source} batches")
    found: list[Candidate] = []
    dropped = 0
    for number, batch in enumerate(subject.batches(data, source, step=step, n=batches)):
        subject.hooks.poll()
        scored = score_batch(subject.state, batch, number)
        finite = [each for each in scored if math.isfinite(each.utility)]
        found += finite
        dropped += len(scored) - len(finite)
        progress.advance()
    if not found:
        raise DataError(
            f"None of the {batches} batches from {data.folder} has a candidate with a finite "
            "utility: no example has a crop, or no response a token. Ask for more with --batches, "
            "or give a set with crops."
        )
    return UtilityAudit(
        **subject.provenance(data, source), step=step, dropped=dropped, candidates=found
    )


def score_batch(state: TrainState, batch: PromptBatch, number: int) -> list[Candidate]:
    """Sample the rollouts of a batch, and let the teacher score every candidate of it."""
    stages = state.stages
    rollouts = stages.policy.generate(batch)
    rows = rollouts.candidates()
    if not rows:
        return []
    features = rollout_features(rollouts, rows)
    utility = observed_utility(stages.learner, rollouts, rows, stages.teacher.score(rollouts, rows))
    predicted = predicted_utility(stages.selector, features)
    entropy = features.values[:, FEATURES.index("mean_entropy")].tolist()
    return [
        Candidate(
            batch=number,
            row=row,
            example=rollouts.example_of(row).id,
            kind=rollouts.example_of(row).kind,
            tokens=int(rollouts.lengths[row]),
            predicted=predicted[place],
            entropy=_known(entropy[place]) if features.has_entropy else None,
            utility=utility[row],
        )
        for place, row in enumerate(rows)
    ]


def predicted_utility(selector: Selector, features: Features) -> list[float | None]:
    """Return what a selector predicts, in units of utility; nothing before it has learnt."""
    if not isinstance(selector, LearnedSelector | RegressedSelector) or not selector.is_trained:
        return [None] * len(features)
    predicted = selector.predict(features.values)
    if isinstance(selector, RegressedSelector):
        # It predicts the square root. Keeping the sign keeps the order.
        predicted = predicted * predicted.abs()
    return [_known(value) for value in predicted.tolist()]


@torch.no_grad()
def observed_utility(
    learner: Learner, rollouts: Rollouts, rows: Sequence[int], teacher: TeacherScores
) -> dict[int, float]:
    """Return u of every row as training observes it (Eq. 9), without a gradient."""
    groups = group_by_prompt(rows, rollouts)
    utility, learner.tokens_per_micro_batch = in_smaller_batches(
        lambda limit: _observed(learner, rollouts, groups, teacher, limit),
        limit=learner.tokens_per_micro_batch,
        smallest=max(group.tokens_of_a_row for group in groups),
        what="student pass",
        notice=learner.hooks.notice,
    )
    return utility


def _observed(
    learner: Learner,
    rollouts: Rollouts,
    groups: Sequence[PromptGroup],
    teacher: TeacherScores,
    tokens: int,
) -> dict[int, float]:
    model = learner.model
    scores = dict(zip(teacher.rows, teacher.hidden, strict=True))
    utility: dict[int, float] = {}
    for batch in micro_batches(groups, tokens):
        learner.hooks.poll()
        with model.compute():
            hidden = model.response_hidden(
                batch.prompts, batch.prompt_of, batch.responses(rollouts)
            )
        per_token = _token_utility(
            learner, hidden, torch.cat([scores[row] for row in batch.rows]), teacher
        )
        lengths = [int(rollouts.lengths[row]) for row in batch.rows]
        means = torch.stack([part.mean() for part in per_token.split(lengths)])
        utility.update(zip(batch.rows, means.tolist(), strict=True))
    return utility


def _token_utility(
    learner: Learner, hidden: Tensor, teacher_hidden: Tensor, teacher: TeacherScores
) -> Tensor:
    """Return d * o * c of packed tokens, a chunk of logits at a time."""
    settings, parts = learner.distill, []
    chunk = settings.tokens_per_chunk
    for own, other in zip(hidden.split(chunk), teacher_hidden.split(chunk), strict=True):
        logits = learner.model.logits(own)
        parts.append(
            token_utility(
                logits,
                teacher.head(other),
                student_topk(logits, settings.k),
                use_overlap=settings.use_overlap,
                use_confidence=settings.use_confidence,
            )
        )
    return torch.cat(parts)


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
