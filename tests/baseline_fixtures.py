"""Short runs of the baselines on the small model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from shapes import make_pictures

from bas_opd.config import Config, load_config, preset
from bas_opd.methods.reward import RuleReward
from bas_opd.types import Grade, Graded, Rollouts

PRESETS = ("sft", "sft-unfiltered", "grpo", "grpo-released", "dapo", "opsd", "opsd-frozen")
SHORT = (
    "model.device=cpu",
    "rollout.prompts_per_step=4",
    "rollout.per_prompt=4",
    "rollout.max_response_tokens=6",
    "optim.learning_rate=1e-3",
    "optim.warmup_steps=0",
    "run.steps=3",
    "run.checkpoint_every=1",
    "run.keep_checkpoints=9",
)


def short_config(name: str, home: Path, model: Path, output: str, *overrides: str) -> Config:
    """Three short steps of a preset; the data lies under `home`."""
    if not (home / "data").exists():
        make_pictures(home / "data", n=16, seed=1)
    paths = [f"model.path={model}", f"data.path={home / 'data'}", f"run.output={home / output}"]
    return load_config(preset(name), [*paths, *SHORT, *overrides])


def graded_by_even_tokens(*, unread: int = 0) -> Callable[[RuleReward, Rollouts, int], Graded]:
    """Call a response right if its first token is even: a random model earns now and then.

    With `unread`, every so-manyth row cannot be read.
    """

    def graded(_: RuleReward, rollouts: Rollouts, limit: int) -> Graded:
        grades: list[Grade] = []
        for row, token in enumerate(rollouts.tokens[:, 0].tolist()):
            is_unread = unread and row % unread == unread - 1
            grades.append("unread" if is_unread else "wrong" if token % 2 else "right")
        return Graded(grades=tuple(grades))

    return graded


def reward_even_tokens(patch: pytest.MonkeyPatch, *, unread: int = 0) -> None:
    """Let a random model earn now and then."""
    patch.setattr(RuleReward, "__call__", graded_by_even_tokens(unread=unread))


def reward(patch: pytest.MonkeyPatch, grade: Grade) -> None:
    """Give every response the same grade."""

    def graded(_: RuleReward, rollouts: Rollouts, limit: int) -> Graded:
        return Graded(grades=(grade,) * len(rollouts))

    patch.setattr(RuleReward, "__call__", graded)
