"""How theta moves: the learner, and the objectives it trains with."""

from bas_opd.learn.clipped_policy import ClippedPolicy, ClipSettings
from bas_opd.learn.distillation import Distillation
from bas_opd.learn.importance import Correction, importance_weights
from bas_opd.learn.learner import Learner, OptimizerSettings
from bas_opd.learn.likelihood import Likelihood, Reading, TokenLogprobs
from bas_opd.learn.objective import Objective, ObjectivePart, PackedRows, backward_in_chunks
from bas_opd.learn.policy_loss import (
    clipped_policy_loss,
    group_advantages,
    k3,
    overlong_penalty,
    token_weights,
)

__all__ = [
    "ClipSettings",
    "ClippedPolicy",
    "Correction",
    "Distillation",
    "Learner",
    "Likelihood",
    "Objective",
    "ObjectivePart",
    "OptimizerSettings",
    "PackedRows",
    "Reading",
    "TokenLogprobs",
    "backward_in_chunks",
    "clipped_policy_loss",
    "group_advantages",
    "importance_weights",
    "k3",
    "overlong_penalty",
    "token_weights",
]
