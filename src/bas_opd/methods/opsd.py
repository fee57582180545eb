"""OPSD: on-policy distillation from a teacher that is told the answer instead of shown the crop.

    L = token mean of D_alpha(p_T(. | full image, question, answer), p(. | full image, question))

over every response whose example has an answer (Eq. 11 with S = C). It is Algorithm 1 with another
view for the teacher and full querying, so its step, records and checks are those of BAS-OPD.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from bas_opd.algorithm import Stages
from bas_opd.compute.clock import Clock
from bas_opd.learn import Learner, Objective
from bas_opd.methods.bas_opd import BasOpd
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.rollout import RolloutEngine
from bas_opd.select import FullSelector
from bas_opd.teacher import Teacher
from bas_opd.types import TeacherScores


def opsd(
    *,
    model: VisionLanguageModel,
    policy: RolloutEngine,
    teacher: Teacher,
    learner: Learner,
    objective: Callable[[TeacherScores], Objective],
    clock: Clock,
) -> BasOpd:
    """Return OPSD; `teacher` sees what `data.views.answer_view` shows."""
    stages = Stages(
        policy=policy,
        selector=FullSelector(),
        teacher=teacher,
        learner=learner,
        objective=objective,
        clock=clock,
        has_view=lambda example: example.has_answer,
    )
    return BasOpd(model=model, stages=stages, query_ratio=Decimal(1))
