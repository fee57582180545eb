"""BAS-OPD as a method: Algorithm 1 around stages that a checkpoint can restore."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal

from torch import Tensor

from bas_opd.algorithm import Stages, train_step
from bas_opd.methods.method import Prompts
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.model.weights import StudentWeights
from bas_opd.types import BudgetKind, Part, StepReport


@dataclass(slots=True, kw_only=True)
class BasOpd:
    """Budget-aware selective on-policy distillation."""

    model: VisionLanguageModel
    stages: Stages
    query_ratio: Decimal
    budget: BudgetKind = "calls"
    _selector_before: dict[str, Tensor] | None = field(default=None, init=False)
    """The selector as it was before the step in progress."""

    def step(self, prompts: Prompts) -> StepReport:
        """Take one step of Algorithm 1."""
        self._selector_before = self.stages.selector.state_dict()
        batch = prompts.take()
        with self.stages.clock.phase("rollout"):
            self.stages.policy.load_weights(self.model.trainable(), batch.step)
        report = train_step(self.stages, batch, self.query_ratio, self.budget)
        self._selector_before = None
        return report

    def rollback(self) -> bool:
        """Undo a step that was given up: it changed gradients and the selector's normaliser."""
        self.stages.learner.zero_grad()
        if self._selector_before is not None:
            self.stages.selector.load_state_dict(self._selector_before)
            self._selector_before = None
        return True

    def close(self) -> None:
        """Free the teacher and the rollout engine."""
        self.stages.teacher.close()
        self.stages.policy.close()

    def parts(self) -> dict[str, Part]:
        """Return the student, its optimizer state, teacher, selector, and rollouts ahead."""
        return {
            "student": StudentWeights(self.model),
            "optimiser": self.stages.learner,
            **self.stages.teacher.parts(),
            "selector": self.stages.selector,
            **self.stages.policy.parts(),
        }
