"""Whole runs whose rollouts vLLM computes: choices, records and resume are the sampler's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from audit_fixtures import Quiet
from baseline_fixtures import reward_even_tokens, short_config
from run_fixtures import TINY, Silent, small_config, small_settings
from run_states import assert_same_end, step_records

from bas_opd.audit.session import audit_run
from bas_opd.audit.subject import Request
from bas_opd.errors import ModelError
from bas_opd.rollout import vllm_engine
from bas_opd.run import loop
from bas_opd.run.checkpoint import published
from bas_opd.run.verify import verify

VLLM = ("rollout.engine=vllm", "rollout.engine_cache_gib=0.25")
ROOT = Path(__file__).parents[2]


def trained(home: Path, model: Path, *overrides: str) -> Path:
    return loop.train(small_config(home, model, *overrides), Silent()).directory


def choices(run: Path) -> list[dict[str, Any]]:
    kept = ("examples", "response_tokens", "candidates", "selected", "explored", "rows", "grades")
    return [{key: step.get(key) for key in kept} for step in step_records(run)]


def test_a_learned_25_run_selects_the_rows_of_the_sampler(
    small_qwen3vl: Path, tmp_path: Path
) -> None:
    ours = trained(tmp_path / "sampler", small_qwen3vl)
    theirs = trained(tmp_path / "vllm", small_qwen3vl, *VLLM)
    assert choices(theirs) == choices(ours)
    steps = step_records(theirs)
    assert any(score is not None for step in steps for score in step["scores"])
    assert [step["engine"]["version"] for step in steps] == [0, 1, 2, 3, 4]
    assert all(step["engine"]["logprob_gap"] < 1e-5 for step in steps)
    assert all("engine" not in step for step in step_records(ours))
    for step, other in zip(step_records(ours), steps, strict=True):
        assert other["loss"] == pytest.approx(step["loss"], rel=1e-3)
    assert verify(theirs, draws=True).is_sound


@pytest.mark.parametrize("preset", ["sft-unfiltered", "grpo", "dapo", "opsd"])
def test_so_does_every_other_method(
    preset: str, small_qwen3vl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward_even_tokens(monkeypatch)
    runs = [
        loop.train(
            short_config(preset, tmp_path, small_qwen3vl, name, *overrides), Silent()
        ).directory
        for name, overrides in (("sampler", ()), ("vllm", VLLM))
    ]
    assert choices(runs[1]) == choices(runs[0])
    assert all(step["engine"]["logprob_gap"] < 1e-5 for step in step_records(runs[1]))
    assert verify(runs[1]).is_sound


@pytest.mark.parametrize("preset", ["grpo", "opsd"])
def test_one_step_ahead_it_draws_what_the_sampler_draws_and_is_weighed(
    preset: str, small_qwen3vl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward_even_tokens(monkeypatch)
    runs = []
    for name, overrides in (("sampler", ()), ("vllm", VLLM)):
        settings = ("rollout.ahead=1", *overrides)
        made = short_config(preset, tmp_path, small_qwen3vl, name, *settings)
        runs.append(loop.train(made, Silent()).directory)
    assert choices(runs[1]) == choices(runs[0])
    steps = step_records(runs[1])
    assert [step["sampled_at"] for step in steps] == [0, 0, 1]
    assert [step["engine"]["version"] for step in steps] == [0, 0, 1]
    assert all(("importance" in step) == (preset == "grpo") for step in steps)
    assert verify(runs[1]).is_sound
    for path in published(runs[1] / "checkpoints"):
        if path.name > "step-00000001":
            shutil.rmtree(path)
    shutil.rmtree(runs[1] / "model")
    again = short_config(preset, tmp_path, small_qwen3vl, "vllm", "rollout.ahead=1", *VLLM)
    loop.train(again, Silent())
    assert step_records(runs[1]) == steps


def started(*arguments: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "bas_opd", *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_killed_run_resumes_to_the_same_end(small_qwen3vl: Path, tmp_path: Path) -> None:
    homes = [tmp_path / name for name in ("whole", "killed")]
    settings = ("run.checkpoint_every=1", *VLLM)
    commands = [["train", TINY, *small_settings(home, small_qwen3vl, *settings)] for home in homes]
    whole, killed = (home / "run" for home in homes)
    process = started(*commands[0])
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said

    process = started(*commands[1])
    deadline = time.monotonic() + 300
    while not published(killed / "checkpoints") and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert process.returncode < 0
    process = started(*commands[1])
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert "Resuming after step" in said
    assert "it may draw other tokens" not in said  # In float32 it does not.
    assert_same_end(killed, whole)
    assert verify(killed).is_sound


def test_a_run_whose_weights_do_not_arrive_stops_and_says_so(
    small_qwen3vl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_engine, "_pack_heads", lambda _: None)
    wrong = "does not hold version 0 of the student's weights: language_model.lm_head.weight is"
    with pytest.raises(ModelError, match=re.escape(wrong)):
        trained(tmp_path, small_qwen3vl, *VLLM)


def test_a_cache_that_holds_no_prompt_is_a_sentence(small_qwen3vl: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"engine_cache_gib"):
        trained(tmp_path, small_qwen3vl, VLLM[0], "rollout.engine_cache_gib=0.0001")


def test_an_audit_of_such_a_run_needs_no_vllm(
    small_qwen3vl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(tmp_path, small_qwen3vl, *VLLM, "run.steps=2")
    monkeypatch.setattr(vllm_engine, "VllmEngine", None)
    monkeypatch.setattr(vllm_engine, "check_vllm", None)
    assert audit_run(Request(run=run, device="cpu"), Quiet()).utility is not None
