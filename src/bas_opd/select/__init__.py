"""Which rollouts the teacher is asked about, within a strict budget (Alg. 1, lines 4-10 and 14)."""

from bas_opd.budget import exploration_quota, query_budget
from bas_opd.select.build import build_selector
from bas_opd.select.features import features_from, rollout_features
from bas_opd.select.learned import LearnedSelector
from bas_opd.select.losses import selector_loss
from bas_opd.select.normaliser import RunningNormaliser
from bas_opd.select.policies import (
    EntropySelector,
    FullSelector,
    RandomSelector,
    Selector,
)
from bas_opd.select.predictor import UtilityPredictor
from bas_opd.select.regressed import RegressedSelector
from bas_opd.select.replay import Labels, ReplayBuffer

__all__ = [
    "EntropySelector",
    "FullSelector",
    "Labels",
    "LearnedSelector",
    "RandomSelector",
    "RegressedSelector",
    "ReplayBuffer",
    "RunningNormaliser",
    "Selector",
    "UtilityPredictor",
    "build_selector",
    "exploration_quota",
    "features_from",
    "query_budget",
    "rollout_features",
    "selector_loss",
]
