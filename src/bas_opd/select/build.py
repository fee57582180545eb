"""From the name of a policy to the policy."""

from __future__ import annotations

from typing import Any

from bas_opd.select.learned import LearnedSelector
from bas_opd.select.policies import EntropySelector, FullSelector, RandomSelector, Selector
from bas_opd.select.regressed import CoveringSelector, RegressedSelector
from bas_opd.select.rules import policy_rule

REGRESSED = ("exploration", "momentum", "replay_capacity", "replay_start", "half_life", "coverage")
"""Settings of the learned policy that those by regression have too: they train no network."""


def build_selector(policy: str, *, seed: int = 0, **settings: Any) -> Selector:
    """Build the policy of that name; those that learn read the settings beyond the seed."""
    name = policy_rule(policy).name
    coverage = settings.get("coverage", False)
    if name == "full":
        return FullSelector()
    if name == "random":
        return RandomSelector(seed=seed, coverage=coverage)
    if name == "entropy":
        return EntropySelector(coverage=coverage)
    correctness = settings.pop("correctness", False)
    if name == "learned":
        return LearnedSelector(seed=seed, **settings)
    shared = {key: settings[key] for key in REGRESSED if key in settings}
    if name == "regressed":
        return RegressedSelector(seed=seed, **shared)
    return CoveringSelector(seed=seed, correctness=correctness, **shared)
