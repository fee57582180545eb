"""Which rollouts the teacher is asked about, within a strict budget (Alg. 1, lines 4-10 and 14).

Names are loaded at first use, so that importing `bas_opd.select.rules` alone loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bas_opd.budget import exploration_quota, query_budget, step_budget
    from bas_opd.select.build import build_selector
    from bas_opd.select.covering import cover, mid_ranks
    from bas_opd.select.features import GradeRows, features_from, rollout_features
    from bas_opd.select.learned import LearnedSelector
    from bas_opd.select.learning import LearningSelector
    from bas_opd.select.losses import selector_loss
    from bas_opd.select.normaliser import RunningNormaliser
    from bas_opd.select.policies import EntropySelector, FullSelector, RandomSelector, Selector
    from bas_opd.select.predictor import UtilityPredictor
    from bas_opd.select.regressed import CoveringSelector, RegressedSelector
    from bas_opd.select.replay import Labels, ReplayBuffer

__all__ = [
    "CoveringSelector",
    "EntropySelector",
    "FullSelector",
    "GradeRows",
    "Labels",
    "LearnedSelector",
    "LearningSelector",
    "RandomSelector",
    "RegressedSelector",
    "ReplayBuffer",
    "RunningNormaliser",
    "Selector",
    "UtilityPredictor",
    "build_selector",
    "cover",
    "exploration_quota",
    "features_from",
    "mid_ranks",
    "query_budget",
    "rollout_features",
    "selector_loss",
    "step_budget",
]

_HOMES = {
    "bas_opd.budget": ("exploration_quota", "query_budget", "step_budget"),
    "bas_opd.select.build": ("build_selector",),
    "bas_opd.select.covering": ("cover", "mid_ranks"),
    "bas_opd.select.features": ("GradeRows", "features_from", "rollout_features"),
    "bas_opd.select.learned": ("LearnedSelector",),
    "bas_opd.select.learning": ("LearningSelector",),
    "bas_opd.select.losses": ("selector_loss",),
    "bas_opd.select.normaliser": ("RunningNormaliser",),
    "bas_opd.select.policies": ("EntropySelector", "FullSelector", "RandomSelector", "Selector"),
    "bas_opd.select.predictor": ("UtilityPredictor",),
    "bas_opd.select.regressed": ("CoveringSelector", "RegressedSelector"),
    "bas_opd.select.replay": ("Labels", "ReplayBuffer"),
}
"""Module -> the names above that it defines."""


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
