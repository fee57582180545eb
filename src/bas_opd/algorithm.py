"""Algorithm 1: one training step."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

from bas_opd.compute.clock import Clock
from bas_opd.learn.learner import Learner
from bas_opd.select import Selector, query_budget, rollout_features
from bas_opd.teacher import CropTeacher
from bas_opd.types import PromptBatch, Rollouts, StepReport


class Policy(Protocol):
    """The full-image policy as a source of rollouts."""

    def generate(self, batch: PromptBatch) -> Rollouts: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """What a step needs: who samples, who chooses, who teaches, who learns."""

    policy: Policy
    selector: Selector
    teacher: CropTeacher
    learner: Learner
    clock: Clock


def train_step(stages: Stages, batch: PromptBatch, query_ratio: Decimal) -> StepReport:
    """Take one step of Algorithm 1 over a prompt batch."""
    step, clock = batch.step, stages.clock
    with clock.phase("rollout"):
        rollouts = stages.policy.generate(batch)  # line 3
        candidates = rollouts.candidates()  # C

    with clock.phase("select"):
        features = rollout_features(rollouts, candidates)  # line 4, Eq. 5
        budget = query_budget(query_ratio, len(candidates))  # K = floor(rho |C|)
        selection = stages.selector.select(features, budget, step=step)  # lines 5-10

    with clock.phase("teacher"):  # line 11: S and nothing else
        teacher = stages.teacher.score(rollouts, selection.rows) if selection.rows else None

    with clock.phase("student"):  # lines 12-13: the student on S, L_BAS, one update
        update = stages.learner.distil(rollouts, selection.rows, teacher)

    with clock.phase("ema"):
        if update.is_valid:
            stages.teacher.follow()

    with clock.phase("learn"):  # line 14: psi only
        learned = stages.selector.learn(features, update.utility, step=step)

    return StepReport(
        query_ratio=query_ratio,
        rollouts=rollouts,
        features=features,
        selection=selection,
        teacher=teacher,
        update=update,
        learned=learned,
        seconds=clock.read(),
    )
