"""The twelve arms."""

from __future__ import annotations

import pytest

from bas_opd.config import dump, preset
from bas_opd.config.loading import flat
from bas_opd.errors import ConfigError
from bas_opd.reproduce.arms import ARMS, arm_config, check_arms

PATHS = ["model.path=m", "data.path=d", "run.output=o"]


def test_every_arm_is_a_preset_over_finesearch_and_no_two_are_alike() -> None:
    configs = [flat(dump(arm_config(arm, 0, PATHS))) for arm in ARMS[1:]]
    assert len(configs) == 13
    assert all(preset(arm).is_file() for arm in ARMS[1:])
    assert len({str(config) for config in configs}) == 13
    for config in configs:
        assert config["run.steps"] == 111
        assert config["rollout.max_response_tokens"] == 24
        differing = {key for key in config if config[key] != configs[0][key]}
        assert all(key.startswith(("select.", "distill.use_")) for key in differing)


@pytest.mark.parametrize("seed", [0, 3])
def test_a_seed_is_of_the_training_and_of_the_selector(seed: int) -> None:
    config = arm_config("learned25", seed, PATHS)
    assert (config.run.seed, config.select.seed) == (42 + seed, seed)


def test_settings_of_the_user_come_before_the_seeds_and_after_the_presets() -> None:
    config = arm_config("full", 2, [*PATHS, "run.steps=7", "run.seed=1"])
    assert (config.run.steps, config.run.seed) == (7, 44)


def test_arms_come_in_the_order_of_the_table() -> None:
    assert check_arms(["learned25", "base", "full"]) == ("base", "full", "learned25")
    with pytest.raises(ConfigError, match=r"no arm named lerned25\. The arms are base, full"):
        check_arms(["full", "lerned25"])
