"""Algorithm 1: one training step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from bas_opd.budget import step_budget
from bas_opd.compute.clock import Clock
from bas_opd.learn import Learner, Objective
from bas_opd.rollout import RolloutEngine
from bas_opd.select import GradeRows, Selector, rollout_features
from bas_opd.teacher import Teacher, query_costs
from bas_opd.types import (
    BudgetKind,
    Example,
    PromptBatch,
    QueryReport,
    StepReport,
    TeacherScores,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """What a step needs: what samples, chooses, teaches and learns."""

    policy: RolloutEngine
    selector: Selector
    teacher: Teacher
    learner: Learner
    objective: Callable[[TeacherScores], Objective]
    """L_BAS against given teacher scores."""
    clock: Clock
    grade: GradeRows | None = None
    """Says which rollouts are right, where selection uses it; the paper's does not."""
    has_view: Callable[[Example], bool] = lambda example: example.has_crop
    """Whether the teacher has a view of an example, so that it can be asked about it."""


def train_step(
    stages: Stages, batch: PromptBatch, query_ratio: Decimal, kind: BudgetKind = "calls"
) -> StepReport:
    """Take one step of Algorithm 1 over a prompt batch, with a budget of a kind."""
    step, clock = batch.step, stages.clock
    with clock.phase("rollout"):
        rollouts = stages.policy.generate(batch)  # line 3

    with clock.phase("select"):
        rows = rollouts.candidates(stages.has_view)  # C
        candidates = rollout_features(rollouts, rows, stages.grade)  # Eq. 5
        costs = query_costs(stages.teacher, rollouts, candidates.rows, kind)
        budget = step_budget(query_ratio, candidates.rows, kind, costs)  # K, Eq. 4
        selection = stages.selector.select(candidates, budget, step=step)  # lines 5-10

    with clock.phase("teacher"):  # line 11: S and nothing else
        teacher = stages.teacher.score(rollouts, selection.rows)
        scored = selection.scored_by(teacher)  # all of S, unless a server failed

    with clock.phase("student"):  # lines 12-13: the student on S, L_BAS, one update
        update = stages.learner.update(rollouts, scored, stages.objective(teacher))

    with clock.phase("ema"):
        if update.is_valid:
            stages.teacher.follow()

    with clock.phase("learn"):  # line 14: psi only
        learned = stages.selector.learn(candidates, update.observed, step=step)

    return StepReport(
        rollouts=rollouts,
        rows=scored,
        update=update,
        seconds=clock.read(),
        waited_seconds=clock.read_waited(),
        queries=QueryReport(
            query_ratio=query_ratio,
            candidates=candidates,
            selection=selection,
            teacher=teacher,
            learned=learned,
        ),
    )
