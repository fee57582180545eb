"""The arms: which there are, and what each is made of."""

from __future__ import annotations

import pytest

from bas_opd.config import dump
from bas_opd.config.loading import flat
from bas_opd.errors import ConfigError
from bas_opd.reproduce.arms import (
    ARMS,
    DEFAULT_ARMS,
    ArmSpec,
    arm_config,
    check_arms,
    effective,
)

PATHS = ["model.path=m", "data.path=d", "run.output=o"]


def settings(arm: str | ArmSpec) -> dict[str, object]:
    return flat(dump(arm_config(arm, 0, PATHS)))


def test_every_arm_is_a_preset_over_finesearch_and_no_two_are_alike() -> None:
    trained = [arm for arm in ARMS if arm != "base"]
    configs = [settings(arm) for arm in trained]
    assert len({str(config) for config in configs}) == len(trained) == 29
    for arm, config in zip(trained, configs, strict=True):
        assert config["run.steps"] == 111
        assert config["rollout.max_response_tokens"] == 24
        differing = {key for key in config if config[key] != configs[0][key]}
        if arm.startswith("fewer"):
            assert differing == {"rollout.per_prompt"}
        elif config["method.name"] != "bas-opd":
            assert config["optim.learning_rate"] == configs[0]["optim.learning_rate"]
            own = ("method.", "select.", "distill.k", "teacher.mode", "grpo.", "sft.")
            assert all(key.startswith(own) for key in differing)
        else:
            own = ("select.", "distill.use_", *(("rollout.p",) if arm.endswith("prompts") else ()))
            assert all(key.startswith(own) for key in differing)


def test_the_default_arms_are_the_papers_and_regressed_25() -> None:
    assert len(DEFAULT_ARMS) == 12
    assert set(DEFAULT_ARMS) < set(ARMS)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_fewer_samples_so_many_rollouts_and_asks_about_all(n: int) -> None:
    config = arm_config(f"fewer{n}", 0, PATHS)
    assert config.rollout.per_prompt == n
    assert (config.select.policy, config.select.query_ratio) == ("full", 1)


@pytest.mark.parametrize(
    ("arm", "ratio"), [("random6", "0.0625"), ("random12", "0.125"), ("random50", "0.5")]
)
def test_another_ratio_of_random_is_that_ratio_alone(arm: str, ratio: str) -> None:
    plain, other = settings("random25"), settings(arm)
    assert {key: other[key] for key in other if other[key] != plain[key]} == {
        "select.query_ratio": ratio
    }


@pytest.mark.parametrize("percent", ["6", "12", "25", "50"])
def test_covering_has_the_ratio_of_random(percent: str) -> None:
    covering, random = (
        arm_config(f"{policy}{percent}", 0, PATHS).select for policy in ("covering", "random")
    )
    assert covering.policy == "covering"
    assert covering.query_ratio == random.query_ratio


def test_an_arm_is_a_name_a_preset_and_settings_that_others_may_override() -> None:
    arm = ArmSpec("random30", "random25", ("select.query_ratio=0.3",))
    assert settings(arm)["select.query_ratio"] == "0.3"
    assert str(arm_config(arm, 0, [*PATHS, "select.query_ratio=0.2"]).select.query_ratio) == "0.2"


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


def test_a_method_that_selects_nothing_has_the_seed_of_training_only() -> None:
    assert arm_config("grpo", 3, PATHS).run.seed == 45
    assert arm_config("grpo", 3, PATHS).select.seed == 0
    assert arm_config("learned25", 3, PATHS).select.seed == 3


def test_settings_that_are_valid_only_together_are_shown() -> None:
    given = ("optim.decay_until=8", "optim.warmup_steps=2", "optim.weight_decay=0.01")
    with pytest.raises(ConfigError):
        arm_config("full", 0, ["model.path=x", "data.path=x", given[0]])
    assert effective(given) == given[:2]
