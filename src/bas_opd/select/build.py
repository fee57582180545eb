"""From the name of a policy to the policy."""

from __future__ import annotations

from typing import Any

from bas_opd.select.learned import LearnedSelector
from bas_opd.select.policies import EntropySelector, FullSelector, RandomSelector, Selector
from bas_opd.select.regressed import RegressedSelector
from bas_opd.select.rules import policy_rule

REGRESSED = ("exploration", "momentum", "replay_capacity", "replay_start", "half_life")
"""Settings of the learned policy that the regressed one has too; it has no network to train."""


def build_selector(policy: str, *, seed: int = 0, **settings: Any) -> Selector:
    """Build the policy of that name; those that learn read the settings beyond the seed."""
    name = policy_rule(policy).name
    if name == "full":
        return FullSelector()
    if name == "random":
        return RandomSelector(seed=seed)
    if name == "entropy":
        return EntropySelector()
    if name == "learned":
        return LearnedSelector(seed=seed, **settings)
    shared = {key: settings[key] for key in REGRESSED if key in settings}
    return RegressedSelector(seed=seed, **shared)
