"""Which settings a resumed run may change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FREE = frozenset(
    {
        "data.path",
        "rollout.prompts_per_batch",
        "distill.tokens_per_chunk",
        "teacher.tokens_per_batch",
        "optim.tokens_per_micro_batch",
        "optim.share_prompts",
        "model.gradient_checkpointing",
        "run.steps",
        "run.epochs",
        "run.output",
        "run.examples_per_step",
        "run.max_bad_steps",
        "run.checkpoint_every",
        "run.keep_checkpoints",
        "run.keep_every",
    }
)
"""Settings that a resumed run may change: batch sizes, what is recorded or kept, and the length of
the run. They change no number beyond rounding. The data may move if its content stays the same."""


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return `key: was X, is now Y` for every changed setting that forbids resuming."""
    old, new = flat(before), flat(now)
    return [
        f"{key}: was {old.get(key)}, is now {new.get(key)}"
        for key in sorted(old.keys() | new.keys())
        if key not in FREE and old.get(key) != new.get(key)
    ]


def flat(config: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings of all sections keyed by their dotted names."""
    return {
        f"{section}.{name}": value
        for section, settings in config.items()
        for name, value in settings.items()
    }
