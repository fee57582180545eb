"""How theta moves: the learner, and the objectives it trains with."""

from bas_opd.learn.distillation import Distillation
from bas_opd.learn.learner import Learner, OptimizerSettings
from bas_opd.learn.objective import Objective, ObjectivePart, PackedRows, backward_in_chunks

__all__ = [
    "Distillation",
    "Learner",
    "Objective",
    "ObjectivePart",
    "OptimizerSettings",
    "PackedRows",
    "backward_in_chunks",
]
