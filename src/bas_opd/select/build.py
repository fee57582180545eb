"""From the name of a policy to the policy."""

from __future__ import annotations

from typing import Any

from bas_opd.errors import ConfigError
from bas_opd.select.learned import LearnedSelector
from bas_opd.select.policies import EntropySelector, FullSelector, RandomSelector, Selector
from bas_opd.select.regressed import RegressedSelector

REGRESSED = ("exploration", "momentum", "replay_capacity", "replay_start", "half_life")
"""Settings of the learned policy that the regressed one has too; it has no network to train."""


def build_selector(policy: str, *, seed: int = 0, **settings: Any) -> Selector:
    """Build the policy of that name; those that learn read the settings beyond the seed."""
    if policy == "full":
        return FullSelector()
    if policy == "random":
        return RandomSelector(seed=seed)
    if policy == "entropy":
        return EntropySelector()
    if policy == "learned":
        return LearnedSelector(seed=seed, **settings)
    if policy == "regressed":
        shared = {name: settings[name] for name in REGRESSED if name in settings}
        return RegressedSelector(seed=seed, **shared)
    raise ConfigError(
        f"There is no selection policy {policy!r}; choose full, random, entropy, learned or "
        "regressed."
    )
