"""The config files against the constants of the paper."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import pytest

from bas_opd.config import Config, load_config, preset
from bas_opd.config.loading import dump, flat
from bas_opd.config.schema import SelectConfig, overlong_cache
from bas_opd.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted(CONFIGS.glob("*.toml"))
ABLATIONS = {
    "learned25-without-overlap": {"distill.use_overlap": False},
    "learned25-without-confidence": {"distill.use_confidence": False},
    "learned25-without-ranking": {"select.rank_weight": 0.0},
    "learned25-without-exploration": {"select.exploration": "0"},
}

BASELINES = {
    "sft": "sft",
    "sft-unfiltered": "sft",
    "grpo": "grpo",
    "grpo-released": "grpo",
    "dapo": "dapo",
    "opsd": "opsd",
    "opsd-frozen": "opsd",
}
"""Preset -> its method."""


def load(name: str) -> Config:
    return load_config(CONFIGS / f"{name}.toml", ["model.path=m", "data.path=d", "run.output=o"])


def settings(name: str) -> dict[str, object]:
    return flat(dump(load(name)))


def test_every_promised_config_is_there_and_no_other() -> None:
    assert {path.stem for path in FILES} == {
        *("full", "random25", "entropy25", "learned10", "learned25", "learned50"),
        *ABLATIONS,
        *(
            "regressed25",
            "covering12",
            "covering25",
            "covering-prompts",
            "fewer1",
            "fewer2",
            "fewer4",
        ),
        *BASELINES,
        *("qwen3.5-4b", "qwen3.5-4b-lora", "qwen3.5-9b", "tiny"),
        *("finesearch", "finesearch2", "demo"),
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_config_loads_and_opens_with_plain_words(path: Path) -> None:
    assert load(path.stem)
    assert path.read_text().startswith("# ")


@pytest.mark.parametrize(
    ("name", "policy", "ratio", "budget"),
    [
        ("full", "full", "1", 224),
        ("random25", "random", "0.25", 56),
        ("entropy25", "entropy", "0.25", 56),
        ("learned10", "learned", "0.1", 22),
        ("learned25", "learned", "0.25", 56),
        ("learned50", "learned", "0.5", 112),
        ("regressed25", "regressed", "0.25", 56),
        ("covering12", "covering", "0.125", 28),
        ("covering25", "covering", "0.25", 56),
    ],
)
def test_a_policy_queries_what_table_6_says(
    name: str, policy: str, ratio: str, budget: int
) -> None:
    config = load(name)
    candidates = config.rollout.prompts_per_step * config.rollout.per_prompt
    assert candidates == 224
    assert config.select.policy == policy
    assert config.select.query_ratio == Decimal(ratio)
    assert int(config.select.query_ratio * candidates) == budget


def test_the_covering_policy_has_the_settings_of_the_regression_wherever_it_is_named() -> None:
    expected = settings("regressed25") | {"select.policy": "covering"}
    assert settings("covering25") == expected
    assert settings("covering12") == expected | {"select.query_ratio": "0.125"}
    paths = ["model.path=m", "data.path=d", "run.output=o"]
    named = load_config(CONFIGS / "learned25.toml", [*paths, "select.policy=covering"])
    assert flat(dump(named)) == expected
    own = load_config(CONFIGS / "covering25.toml", [*paths, "select.half_life=7.0"])
    assert own.select.half_life == 7


@pytest.mark.parametrize("name", ["learned25", "qwen3.5-4b", "qwen3.5-9b"])
def test_the_main_runs_have_the_settings_of_section_3_1_and_tables_5_and_6(name: str) -> None:
    expected = {
        "model.thinking": False,
        "lora.rank": 0,
        "data.max_prompt_tokens": 8192,
        "rollout.prompts_per_step": 28,
        "rollout.per_prompt": 8,
        "rollout.temperature": 1.0,
        "rollout.top_p": 1.0,
        "rollout.max_response_tokens": 1024,
        "select.policy": "learned",
        "select.query_ratio": "0.25",
        "select.seed": 0,
        "select.exploration": "0.1",
        "select.hidden": 32,
        "select.learning_rate": 1e-3,
        "select.momentum": 0.99,
        "select.replay_capacity": 512,
        "select.replay_start": 96,
        "select.replay_batch": 256,
        "select.updates_per_step": 2,
        "select.half_life": 10,
        "select.rank_weight": 0.2,
        "select.min_gap": 1e-6,
        "distill.alpha": 0.5,
        "distill.k": 100,
        "distill.support": "tail",
        "distill.use_overlap": True,
        "distill.use_confidence": True,
        "teacher.mode": "ema",
        "teacher.tau": 0.05,
        "optim.learning_rate": 2e-6,
        "optim.weight_decay": 0.01,
        "optim.gradient_clip": 1.0,
        "optim.warmup_steps": 10,
        "run.seed": 42,
        "run.epochs": 1,
        "run.steps": None,
    }
    actual = settings(name)
    assert {key: actual[key] for key in expected} == expected


@pytest.mark.parametrize("name", ["qwen3.5-4b", "qwen3.5-9b"])
def test_the_model_configs_name_their_model(name: str) -> None:
    config = load_config(CONFIGS / f"{name}.toml", ["data.path=d"])
    assert config.model.path.lower() == f"qwen/{name}"


def test_the_longest_row_fits_the_model_length_of_9216() -> None:
    config = load("learned25")
    assert config.data.max_prompt_tokens + config.rollout.max_response_tokens == 9216


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_differs_from_learned_25_in_its_one_setting(name: str) -> None:
    main, ablation = settings("learned25"), settings(name)
    changed = {key: value for key, value in ablation.items() if value != main[key]}
    assert changed == ABLATIONS[name]


@pytest.mark.parametrize("name", ["tiny", "demo"])
def test_a_short_run_selects_by_prediction_in_at_least_half_of_its_steps(name: str) -> None:
    config = load(name)
    candidates = config.rollout.prompts_per_step * config.rollout.per_prompt
    labels_per_step = int(config.select.query_ratio * candidates)
    warm_up = -(-config.select.replay_start // labels_per_step)
    assert config.run.steps is not None
    assert 2 * (config.run.steps - warm_up) >= config.run.steps


def test_the_configs_of_the_repository_are_those_of_the_package() -> None:
    assert (CONFIGS / "tiny.toml").samefile(preset("tiny"))


@pytest.mark.parametrize("name", [*ABLATIONS, "learned25", "learned10", "entropy25"])
def test_a_policy_laid_over_finesearch_keeps_the_settings_of_both(name: str) -> None:
    base, policy = settings("finesearch"), settings(name)
    merged = load_config(
        preset(name), ["model.path=m", "data.path=d", "run.output=o"], over=preset("finesearch")
    )
    values = flat(dump(merged))
    assert {key: values[key] for key in base if key.startswith(("select.", "distill."))} == {
        key: policy[key] for key in base if key.startswith(("select.", "distill."))
    }
    assert {key: values[key] for key in base if key.startswith(("rollout.", "optim.", "run."))} == {
        key: base[key] for key in base if key.startswith(("rollout.", "optim.", "run."))
    }


def test_finesearch_has_the_papers_batch_and_number_of_steps() -> None:
    config = load("finesearch")
    assert (config.rollout.prompts_per_step, config.rollout.per_prompt) == (28, 8)
    assert config.run.steps == 3120 // 28 == 111


def test_every_setting_of_table_5_says_so() -> None:
    for name, field in SelectConfig.model_fields.items():
        assert field.description, name
        if name not in ("policy", "query_ratio", "budget", "coverage", "correctness"):
            assert "Table 5" in field.description, name


def test_every_setting_is_described() -> None:
    for section in Config.model_fields.values():
        for name, field in section.annotation.model_fields.items():  # type: ignore[union-attr]
            assert re.search(r"[.)]$", field.description or ""), name


@pytest.mark.parametrize(("name", "method"), BASELINES.items())
def test_a_baseline_names_its_method_and_keeps_the_batch_of_the_paper(
    name: str, method: str
) -> None:
    config = load(name)
    assert config.method.name == method
    rollout = config.rollout
    assert (rollout.prompts_per_step, rollout.per_prompt, rollout.max_response_tokens) == (
        *(28, 8),
        1024,
    )
    assert (rollout.temperature, rollout.top_p) == (1.0, 1.0)
    assert config.optim.learning_rate == (1e-6 if method in ("grpo", "dapo") else 2e-6)


@pytest.mark.parametrize("name", ["grpo", "dapo", "opsd", "sft"])
def test_the_name_of_a_method_alone_gives_the_settings_of_its_preset(name: str) -> None:
    paths = ["model.path=m", "data.path=d", "run.output=o"]
    named = load_config(CONFIGS / "learned25.toml", [*paths, f"method.name={name}"])
    assert flat(dump(named)) == settings(name)


def test_opsd_takes_another_teacher_and_has_a_moving_average_without() -> None:
    assert settings("opsd")["teacher.mode"] == "ema"
    other = load_config(CONFIGS / "opsd.toml", ["model.path=m", "data.path=d", "teacher.path=t"])
    assert other.method.name == "opsd"
    assert other.teacher.path == "t"


def test_the_baselines_have_the_settings_that_the_documentation_names() -> None:
    keys = ("scale", "clip_low", "clip_high", "dual_clip", "beta", "aggregate", "updates_per_step")
    found = {
        name: tuple(settings(name)[f"grpo.{key}"] for key in keys)
        for name in ("grpo", "grpo-released", "dapo")
    }
    assert found == {
        "grpo": ("std", 0.2, 0.2, None, 0.04, "sequence", 1),
        "grpo-released": ("none", 0.2, 0.28, 3.0, 0.0, "token", 4),
        "dapo": ("std", 0.2, 0.28, None, 0.0, "token", 4),
    }
    dapo = load("dapo")
    assert overlong_cache(dapo) == 205
    assert dapo.dapo.rounds == 4
    assert settings("opsd-frozen")["teacher.mode"] == "frozen"
    assert settings("sft-unfiltered")["sft.keep"] == "all"


@pytest.mark.parametrize(
    ("name", "override", "words"),
    [
        ("grpo", "select.query_ratio=0.1", "select.query_ratio is 0.1, but the method grpo"),
        ("grpo", "select.query_ratio=0.25", "select.query_ratio is 0.25, but the method grpo"),
        ("grpo", "dapo.rounds=2", "belongs to dapo"),
        ("learned25", "grpo.beta=0.04", "belongs to dapo, grpo"),
        ("dapo", "rollout.prompts_per_step=6", "make 3 mini-batches of up to 2. Set it to 3"),
        ("sft", "teacher.mode=frozen", "teacher.mode is frozen, but the method sft"),
        ("opsd", "distill.use_overlap=false", "the method opsd does not use it"),
        ("learned25", "grpo.beta=0.1", "belongs to dapo, grpo"),
        ("learned25", "sft.keep=all", "belongs to sft"),
        ("grpo", "rollout.per_prompt=1", "rollout.per_prompt to 2 or more"),
        ("dapo", "rollout.top_p=0.9", "rollout.top_p=1 or grpo.updates_per_step=1"),
        ("dapo", "rollout.prompts_per_step=3", "grpo.updates_per_step is 4, but a step has only 3"),
        ("grpo", "method.name=ppo", "'bas-opd', 'sft', 'grpo', 'dapo' or 'opsd' is expected"),
    ],
)
def test_a_setting_that_a_method_cannot_use_is_refused(
    name: str, override: str, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(CONFIGS / f"{name}.toml", ["model.path=m", "data.path=d", override])
    assert words in str(caught.value)


def test_a_memory_setting_and_one_update_with_top_p_are_accepted() -> None:
    paths = ["model.path=m", "data.path=d"]
    for name in BASELINES:
        load_config(CONFIGS / f"{name}.toml", [*paths, "distill.tokens_per_chunk=64"])
    load_config(CONFIGS / "grpo.toml", [*paths, "rollout.top_p=0.9"])


def test_covering_prompts_has_the_calls_of_an_eighth_of_full_querying() -> None:
    config, full = load("covering-prompts"), load("full")
    assert config.select.policy == "covering"
    candidates = config.rollout.prompts_per_step * config.rollout.per_prompt
    queried = config.select.query_ratio * candidates
    assert queried == full.rollout.prompts_per_step * full.rollout.per_prompt / 8
