"""The arms: the base model, the policies of Table 3, the ablations of Table 4, and ours."""

from __future__ import annotations

from collections.abc import Sequence

from bas_opd.config import Config, load_config, preset
from bas_opd.errors import ConfigError

BASE = "base"
"""The model before any training."""
FULL = "full"
"""Full querying, the reference of all others."""
ARMS = (
    BASE,
    FULL,
    "random25",
    "entropy25",
    "learned10",
    "learned25",
    "learned50",
    "learned25-without-overlap",
    "learned25-without-confidence",
    "learned25-without-ranking",
    "learned25-without-exploration",
    "regressed25",
    "covering12",
    "covering25",
)
"""Each but the base is a preset of that name over `finesearch.toml`."""
USUAL = tuple(arm for arm in ARMS if not arm.startswith("covering"))
"""The arms that are trained if none are named."""
FIRST_SEED = 42
"""The paper's training seed (Table 6); its selector seed is 0 (Table 5)."""


def check_arms(names: Sequence[str]) -> tuple[str, ...]:
    """Return the named arms, each once and in the order of the table."""
    if unknown := sorted(set(names) - set(ARMS)):
        raise ConfigError(
            f"There is no arm named {', '.join(unknown)}. The arms are {', '.join(ARMS)}."
        )
    return tuple(arm for arm in ARMS if arm in names)


def effective(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the overrides that differ from the presets."""
    somewhere = ["model.path=x", "data.path=x"]
    plain = arm_config(FULL, 0, somewhere)
    return tuple(each for each in overrides if arm_config(FULL, 0, [*somewhere, each]) != plain)


def arm_config(arm: str, seed: int, settings: Sequence[str]) -> Config:
    """Return the configuration of one run: seed 0 has the paper's two seeds, 1 the next two."""
    seeds = [f"run.seed={FIRST_SEED + seed}", f"select.seed={seed}"]
    common = preset("finesearch")
    if arm == BASE:
        return load_config(common, [*settings, *seeds])
    return load_config(preset(arm), [*settings, *seeds], over=common)
