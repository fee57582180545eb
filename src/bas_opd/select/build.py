"""From the name of a policy to the policy."""

from __future__ import annotations

from typing import Any

from bas_opd.errors import ConfigError
from bas_opd.select.learned import LearnedSelector
from bas_opd.select.policies import EntropySelector, FullSelector, RandomSelector, Selector


def build_selector(policy: str, *, seed: int = 0, **learned: Any) -> Selector:
    """Build the policy of that name; settings beyond the seed are read by `learned` alone."""
    if policy == "full":
        return FullSelector()
    if policy == "random":
        return RandomSelector(seed=seed)
    if policy == "entropy":
        return EntropySelector()
    if policy == "learned":
        return LearnedSelector(seed=seed, **learned)
    raise ConfigError(
        f"There is no selection policy {policy!r}; choose full, random, entropy or learned."
    )
