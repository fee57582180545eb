"""Gradient geometry: the gradient of the selected rows against that of the others (Figure 4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from bas_opd.audit.records import CheckpointGeometry, GeometryAudit, Pair
from bas_opd.audit.subject import Subject
from bas_opd.data.records import PreparedSet
from bas_opd.errors import BasOpdError, CheckpointError
from bas_opd.methods import BasOpd
from bas_opd.run.checkpoint import read_checkpoint
from bas_opd.run.manifest import published, step_of
from bas_opd.run.progress import Progress
from bas_opd.select import rollout_features, step_budget
from bas_opd.select.rules import policy_rule
from bas_opd.teacher import query_costs
from bas_opd.types import PromptBatch, Rollouts

CHUNK = 2**24
"""Numbers that are multiplied in float64 at a time."""

Gradient = list[Tensor | None]
"""In the order of the parameters, in host memory; none where nothing flowed."""


def audit_geometry(subject: Subject, progress: Progress) -> GeometryAudit:
    """Compare both gradients over the batches that follow each of several checkpoints.

    The gradient is that of L_BAS before clipping, over the selected and over the other candidates;
    no step is taken. However many the batches, there are at most four gradients in host memory (the
    two of a batch and two sums) and one on the device.
    """
    if (obstacle := why_no_geometry(subject)) is not None:
        raise BasOpdError(obstacle)
    paths = chosen_checkpoints(subject)
    data = subject.dataset()
    progress.start(len(paths) * subject.request.pairs, "gradients")
    made = (_checkpoint(subject, path, data, progress) for path in paths)
    found = [each for each in made if each is not None]
    if not found:
        raise BasOpdError(
            f"No checkpoint of {subject.run} gave a pair of gradients: the checkpoints are "
            "damaged, or no batch had both selected and other candidates."
        )
    return GeometryAudit(**subject.provenance(data, "training"), checkpoints=found)


def why_no_geometry(subject: Subject) -> str | None:
    """Return why a run has no gradients to compare, or not enough checkpoints; none if it has."""
    if subject.config.select.query_ratio == 1:
        return (
            f"The run in {subject.run} asks the teacher about every candidate "
            "(select.query_ratio=1): no row is unselected, and there is no gradient to compare."
        )
    found = len(chosen_checkpoints(subject))
    if not found:
        return f"The run in {subject.run} has no checkpoint to compute gradients at."
    if found == 1 < subject.request.checkpoints:
        return (
            f"The run in {subject.run} has kept one checkpoint, and gradients are followed along "
            "several. Train with run.keep_every=N to keep that of every N steps, or look at this "
            "one alone with --checkpoints 1."
        )
    return None


def chosen_checkpoints(subject: Subject) -> list[Path]:
    """Return checkpoints spread evenly over the run, the newest always among them."""
    n = subject.request.checkpoints
    paths = published(subject.directory.checkpoints)[::-1]
    if len(paths) <= n:
        return paths
    if n == 1:
        return paths[-1:]
    first, last = step_of(paths[0]), step_of(paths[-1])
    chosen: list[Path] = []
    for place in range(n):
        wanted = first + (last - first) * place / (n - 1)
        left = [path for path in paths if path not in chosen]
        chosen.append(min(left, key=lambda path: abs(step_of(path) - wanted)))
    return sorted(chosen)


def _checkpoint(
    subject: Subject, path: Path, data: PreparedSet, progress: Progress
) -> CheckpointGeometry | None:
    try:
        snapshot = read_checkpoint(path)
    except CheckpointError as error:
        subject.hooks.notice(f"{error} It is left out.")
        return None
    step = subject.restore(snapshot)
    del snapshot  # As large as the gradients that follow, and no longer needed.
    selector = subject.method.stages.selector
    if policy_rule(subject.config.select.policy).learns and not selector.is_trained:
        subject.hooks.notice(
            f"At step {step} the selector had learned nothing yet: it draws at random."
        )
    frozen = selector.state_dict()
    pairs = subject.request.pairs
    found: list[Pair] = []
    sums: list[Gradient] = []
    for batch in subject.batches(data, "training", step=step, n=pairs):
        subject.hooks.poll()
        if (pair := _compare(subject, batch, sums)) is not None:
            found.append(pair)
        # Selecting has moved the normaliser; every batch gets the selector of the checkpoint.
        selector.load_state_dict(frozen)
        progress.advance()
    if left_out := pairs - len(found):
        subject.hooks.notice(
            f"At step {step}, {left_out} of {pairs} batches are left out: they have "
            "no selected or no other candidate, or a gradient that is not finite or zero."
        )
    if not found:
        return None
    rows = sum(pair.selected for pair in found), sum(pair.unselected for pair in found)
    mean = _pair(sums, rows, scale=1 / len(found))
    return None if mean is None else CheckpointGeometry(step=step, pairs=found, mean=mean)


def _compare(subject: Subject, batch: PromptBatch, sums: list[Gradient]) -> Pair | None:
    """Compare the two gradients of a batch, and add them to the sums; none if they are no pair."""
    stages = subject.method.stages
    rollouts = stages.policy.generate(batch)
    features = rollout_features(rollouts, rollouts.candidates(stages.has_view), stages.grade)
    kind = subject.method.budget
    costs = query_costs(stages.teacher, rollouts, features.rows, kind)
    budget = step_budget(subject.method.query_ratio, features.rows, kind, costs)
    chosen = stages.selector.select(features, budget, step=rollouts.step).rows
    rest = sorted(set(features.rows) - set(chosen))
    if not chosen or not rest:
        return None
    gradients = [gradient(subject.method, rollouts, rows) for rows in (chosen, rest)]
    pair = _pair(gradients, (len(chosen), len(rest)))
    if pair is not None:
        sums[:] = map(_sum, sums, gradients) if sums else gradients
    return pair


def gradient(method: BasOpd, rollouts: Rollouts, rows: Sequence[int]) -> Gradient:
    """Return the gradient of L_BAS over some rows (Eq. 11), before clipping; no step follows."""
    stages = method.stages
    learner = stages.learner
    learner.accumulate(rollouts, rows, stages.objective(stages.teacher.score(rollouts, rows)))
    found = [None if p.grad is None else p.grad.to("cpu") for p in learner.parameters]
    learner.zero_grad()
    return found


def _pair(
    gradients: Sequence[Gradient], rows: tuple[int, int], *, scale: float = 1.0
) -> Pair | None:
    """Return lengths and cosine of two gradients; none where one of them has no direction."""
    norm, other_norm = (math.sqrt(_dot(each, each)) for each in gradients)
    if not (0 < norm < math.inf and 0 < other_norm < math.inf):
        return None
    cosine = _dot(*gradients) / norm / other_norm
    return Pair(
        selected_norm=scale * norm,
        unselected_norm=scale * other_norm,
        cosine=max(-1.0, min(1.0, cosine)),
        selected=rows[0],
        unselected=rows[1],
    )


def _dot(a: Gradient, b: Gradient) -> float:
    """Multiply two gradients in float64, a chunk at a time."""
    return math.fsum(
        float(x.double() @ y.double())
        for left, right in zip(a, b, strict=True)
        if left is not None and right is not None
        for x, y in zip(left.flatten().split(CHUNK), right.flatten().split(CHUNK), strict=True)
    )


def _sum(total: Gradient, more: Gradient) -> Gradient:
    """Add a gradient to a running sum, in place where there is one."""
    return [
        new if old is None else old if new is None else old.add_(new)
        for old, new in zip(total, more, strict=True)
    ]
