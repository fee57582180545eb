"""Importance weights in whole runs: on record, checked, and without effect where they are 1."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from baseline_fixtures import reward_even_tokens, short_config
from run_fixtures import Silent, events_of, rewrite

from bas_opd.config import load_config, preset
from bas_opd.config.loading import differences, dump, recorded_config
from bas_opd.errors import ConfigError
from bas_opd.run import loop
from bas_opd.run.curves import drawn_curves
from bas_opd.run.record import parse_step
from bas_opd.run.verify import verify

PATHS = ["model.path=m", "data.path=d"]
ON = "rollout.correct=true"


def steps_of(run: Path) -> list[dict[str, Any]]:
    return [event for event in events_of(run) if event["event"] == "step"]


@pytest.mark.parametrize("name", ["grpo", "grpo-released", "dapo", "opsd", "tiny"])
def test_weights_of_the_trainers_own_sampler_are_1_but_for_rounding(
    name: str, small_qwen35: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward_even_tokens(monkeypatch)
    runs = [
        loop.train(short_config(name, tmp_path, small_qwen35, output, *settings), Silent())
        for output, settings in (("plain", ()), ("weighed", (ON, "rollout.correct_cap=1.5")))
    ]
    plain, weighed = (steps_of(run.directory) for run in runs)
    assert not any("importance" in step for step in plain)
    for one, other in zip(plain, weighed, strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-3, abs=1e-5)
        assert other["gradient_norm"] == pytest.approx(one["gradient_norm"], rel=1e-2)
        found = other["importance"]
        rows = other["scored"] if "scored" in other else other["rows"]
        assert found["tokens"] == sum(other["response_tokens"][row] for row in rows) > 0
        assert 0 <= found["mean_difference"] <= found["max_difference"] < 1e-3
        assert found["truncated"] == 0
    titles = {curve.key for curve in drawn_curves([parse_step(step) for step in weighed])}
    assert "importance/difference" in titles
    checks = {each.name: each for each in verify(runs[1].directory).checks}
    assert checks["rollouts"].note == "importance weights up to 1.5"
    assert all(each.is_sound for each in checks.values())
    assert "rollouts" not in {each.name for each in verify(runs[0].directory).checks}


def test_verify_names_weights_that_are_missing_or_of_other_tokens(
    small_qwen35: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward_even_tokens(monkeypatch)
    run = loop.train(short_config("grpo", tmp_path, small_qwen35, "run", ON), Silent()).directory
    events = events_of(run)
    first = next(event for event in events if event["event"] == "step")

    def found(others: dict[str, Any] | None = None, **changes: Any) -> list[str]:
        changed = [dict(event) for event in events]
        first = next(event for event in changed if event["event"] == "step")
        first["importance"] = {**first["importance"], **changes} if changes else None
        first.update(others or {})
        rewrite(run, changed)
        (check,) = [each for each in verify(run, files=False).checks if each.name == "rollouts"]
        return list(check.problems)

    assert found() == ["step 0: importance is missing."]
    (problem,) = found(tokens=3)
    assert problem.startswith("step 0: importance is of 3 tokens, but its rows have ")
    assert "weights truncated" in found(truncated=10**6)[0]
    assert "largest one" in found(max_difference=0.0)[0]
    apart, tokens = math.log(2), first["importance"]["tokens"]
    assert found(truncated=1, mean_difference=apart / tokens, max_difference=apart) == []
    assert found(truncated=1, mean_difference=0.5, max_difference=0.6)[0].startswith(
        "step 0: importance has 1 weights truncated, but a mean difference of 0.5 and"
    )
    assert found(truncated=2, mean_difference=1.5 * apart / tokens, max_difference=1.0) != []
    for name in ("mean_difference", "max_difference"):
        assert found(**{name: None}) == [
            "step 0: importance has no differences, but the loss is finite."
        ]
    assert found({"loss": None}, mean_difference=None, max_difference=None) == []


def test_verify_names_weights_that_were_not_asked_for(
    small_qwen35: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward_even_tokens(monkeypatch)
    run = loop.train(short_config("grpo", tmp_path, small_qwen35, "run"), Silent()).directory
    events = events_of(run)
    first = next(event for event in events if event["event"] == "step")
    tokens = sum(first["response_tokens"][row] for row in first["rows"])
    found = {"mean_difference": 0.1, "max_difference": 0.2, "truncated": 0}
    first["importance"] = {"tokens": tokens, **found}
    rewrite(run, events)
    (check,) = [each for each in verify(run, files=False).checks if each.name == "rollouts"]
    assert check.problems == ("step 0: importance is on record, but not in use.",)


def test_a_run_of_before_there_were_weights_has_none() -> None:
    for name, engine in (("grpo", "vllm"), ("grpo", "sampler"), ("learned25", "vllm")):
        config = load_config(preset(name), [*PATHS, f"rollout.engine={engine}"])
        settings = dump(config)
        assert recorded_config(settings) == config
        later = ("correct", "correct_cap", "ahead", "overlap")
        rollout = {k: v for k, v in settings["rollout"].items() if k not in later}
        found = recorded_config({**settings, "rollout": rollout})
        assert found.importance_cap is None
        changes = differences(dump(found), settings)
        has_weights = config.importance_cap is not None
        assert changes == ["rollout.correct: was False, is now auto"] * has_weights


def test_auto_corrects_policies_of_another_engine_only() -> None:
    def cap(name: str, *settings: str) -> float | None:
        return load_config(preset(name), [*PATHS, *settings]).importance_cap

    vllm = "rollout.engine=vllm"
    assert cap("grpo") is None
    assert cap("grpo", vllm) == cap("dapo", vllm) == 2.0
    assert cap("grpo", vllm, "rollout.correct=false") is None
    assert cap("grpo", vllm, "rollout.top_p=0.9") is None
    assert cap("learned25", vllm) is cap("opsd", vllm) is None
    assert cap("learned25", ON, "rollout.correct_cap=3") == 3.0


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("sft", [ON], "rollout.correct is True, but the method sft does not use it"),
        ("grpo", [ON, "rollout.top_p=0.9"], "where sampling cuts the distribution"),
        ("grpo", ["rollout.correct_cap=3"], "no token has an importance weight in this run"),
        ("grpo", [ON, "rollout.correct_cap=0"], "rollout.correct_cap is 0"),
        ("grpo", ["rollout.correct=maybe"], "rollout.correct is 'maybe'"),
    ],
)
def test_what_cannot_be_corrected_is_refused(name: str, settings: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_config(preset(name), [*PATHS, *settings])
