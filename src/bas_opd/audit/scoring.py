"""The utility audit: every candidate of several batches, scored under one frozen checkpoint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from bas_opd.audit.records import Candidate, Source, UtilityAudit
from bas_opd.audit.subject import Subject
from bas_opd.errors import DataError
from bas_opd.methods import BasOpd
from bas_opd.run.progress import Progress
from bas_opd.select import rollout_features
from bas_opd.types import FEATURES, PromptBatch, Rollouts


def audit_utility(
    subject: Subject, progress: Progress, *, held_out: Path | None = None
) -> UtilityAudit:
    """Score all candidates of the batches that would follow the run, or of a held-out set.

    The selector is frozen: it learns nothing and its normaliser stays (Figure 3).
    """
    source: Source = "training" if held_out is None else "held-out"
    data, batches = subject.dataset(held_out), subject.request.batches
    step = subject.restore_newest()
    progress.start(batches, f"utility, {source} batches")
    found: list[Candidate] = []
    dropped = 0
    for number, batch in enumerate(subject.batches(data, source, step=step, n=batches)):
        subject.hooks.poll()
        scored = score_batch(subject.method, batch, number)
        finite = [each for each in scored if math.isfinite(each.utility)]
        found += finite
        dropped += len(scored) - len(finite)
        progress.advance()
    if not found:
        raise DataError(
            f"None of the {batches} batches from {data.folder} has a candidate with a finite "
            "utility: no example has what the teacher is shown (by default, a crop), or no "
            "response has a token. Ask for more with --batches, or give another set."
        )
    return UtilityAudit(
        **subject.provenance(data, source), step=step, dropped=dropped, candidates=found
    )


def score_batch(method: BasOpd, batch: PromptBatch, number: int) -> list[Candidate]:
    """Sample the rollouts of a batch, and let the teacher score every candidate of it."""
    stages = method.stages
    rollouts = stages.policy.generate(batch)
    candidates = rollout_features(rollouts, rollouts.candidates(stages.has_view), stages.grade)
    if not candidates.rows:
        return []
    utility = observed_utility(method, rollouts, candidates.rows)
    predicted = stages.selector.predicted_utility(candidates)
    entropy = candidates.values[:, FEATURES.index("mean_entropy")].tolist()
    texts = _numbered_texts(rollouts, candidates.rows)
    return [
        Candidate(
            batch=number,
            row=row,
            example=rollouts.example_of(row).id,
            kind=rollouts.example_of(row).kind,
            tokens=int(rollouts.lengths[row]),
            predicted=predicted[place],
            entropy=_known(entropy[place]) if candidates.has_entropy else None,
            utility=utility[row],
            text=texts[place],
        )
        for place, row in enumerate(candidates.rows)
    ]


def observed_utility(method: BasOpd, rollouts: Rollouts, rows: Sequence[int]) -> dict[int, float]:
    """Return u of every row as training observes it (Eq. 9), without a gradient."""
    stages = method.stages
    objective = stages.objective(stages.teacher.score(rollouts, rows))
    return stages.learner.measure(rollouts, rows, objective).observed


def _numbered_texts(rollouts: Rollouts, rows: Sequence[int]) -> list[int]:
    """Number the different responses of each prompt in the order in which they come."""
    known: dict[int, dict[tuple[int, ...], int]] = {}
    numbers = []
    for row in rows:
        text = tuple(rollouts.tokens[row, : int(rollouts.lengths[row])].tolist())
        texts = known.setdefault(rollouts.prompt_of(row), {})
        numbers.append(texts.setdefault(text, len(texts)))
    return numbers


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
