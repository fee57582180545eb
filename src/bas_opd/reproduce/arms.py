"""The arms: the base model, the policies of Table 3, the ablations of Table 4, and ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bas_opd.config import Config, load_config, preset
from bas_opd.config.loading import COMMAND_LINE
from bas_opd.errors import ConfigError

BASE = "base"
"""The model before any training."""
FULL = "full"
"""Full querying, the reference of all others."""


@dataclass(frozen=True, slots=True)
class ArmSpec:
    """One way to train: a preset over that of the task, and settings on top of it."""

    name: str
    preset: str
    """Empty for the base, which is not trained."""
    settings: tuple[str, ...] = ()


PAPER = (
    ArmSpec(BASE, ""),
    ArmSpec(FULL, "full"),
    ArmSpec("random25", "random25"),
    ArmSpec("entropy25", "entropy25"),
    ArmSpec("learned10", "learned10"),
    ArmSpec("learned25", "learned25"),
    ArmSpec("learned50", "learned50"),
    ArmSpec("learned25-without-overlap", "learned25-without-overlap"),
    ArmSpec("learned25-without-confidence", "learned25-without-confidence"),
    ArmSpec("learned25-without-ranking", "learned25-without-ranking"),
    ArmSpec("learned25-without-exploration", "learned25-without-exploration"),
)
"""The paper's arms."""
OURS = (
    ArmSpec("regressed25", "regressed25"),
    ArmSpec("fewer1", "fewer1"),
    ArmSpec("fewer2", "fewer2"),
    ArmSpec("fewer4", "fewer4"),
    ArmSpec("random6", "random25", ("select.query_ratio=0.0625",)),
    ArmSpec("random12", "random25", ("select.query_ratio=0.125",)),
    ArmSpec("random50", "random25", ("select.query_ratio=0.5",)),
    ArmSpec("covering6", "covering25", ("select.query_ratio=0.0625",)),
    ArmSpec("covering12", "covering12"),
    ArmSpec("covering25", "covering25"),
    ArmSpec("covering50", "covering25", ("select.query_ratio=0.5",)),
    ArmSpec("covering-prompts", "covering-prompts"),
)
"""Arms that the paper does not have."""
_RATE = ("optim.learning_rate=1e-4",)
"""That of the task: the presets of the baselines have the one of a real model."""
BASELINES = (
    ArmSpec("sft", "sft", _RATE),
    ArmSpec("sft-unfiltered", "sft-unfiltered", _RATE),
    ArmSpec("grpo", "grpo", _RATE),
    ArmSpec("grpo-released", "grpo-released", _RATE),
    ArmSpec("dapo", "dapo", _RATE),
    ArmSpec("opsd", "opsd", _RATE),
    ArmSpec("opsd-frozen", "opsd-frozen", _RATE),
)
"""The methods that the paper compares with in Table 2."""
ARMS: Mapping[str, ArmSpec] = {arm.name: arm for arm in (*PAPER, *OURS, *BASELINES)}
"""Every known arm by its name, in the order of the table."""
DEFAULT_ARMS = (*(arm.name for arm in PAPER), "regressed25")
"""What `bas-opd reproduce policies` runs unless it is told otherwise."""
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

    def differs(override: str) -> bool:
        try:
            return arm_config(FULL, 0, [*somewhere, override]) != plain
        except ConfigError:  # It is valid with the others only.
            return True

    return tuple(filter(differs, overrides))


def arm_config(
    arm: str | ArmSpec,
    seed: int,
    settings: Sequence[str],
    *,
    task: str = "finesearch",
    origin: str = COMMAND_LINE,
) -> Config:
    """Return the configuration of one run: seed 0 has the paper's two seeds, 1 the next two.

    `settings` come after those of the arm, and so win. `origin` says where they stand.
    """
    spec = ARMS[arm] if isinstance(arm, str) else arm
    common = preset(task)
    file, over = (preset(spec.preset), common) if spec.preset else (common, None)
    overrides = [*spec.settings, *settings, f"run.seed={FIRST_SEED + seed}"]
    config = load_config(file, overrides, over=over, origin=origin)
    if config.method.name != "bas-opd":
        return config  # it selects nothing at random
    return load_config(file, [*overrides, f"select.seed={seed}"], over=over)
