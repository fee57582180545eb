"""The real vLLM in several processes, as torchrun starts them: each rank drives an engine."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from run_fixtures import TINY, Silent, small_config, small_settings
from run_states import assert_same_end, assert_same_run, step_records
from torchrun import torchrun, wait_for_checkpoint, workers_of

from bas_opd.run import loop
from bas_opd.run.verify import verify

SECONDS = 400
SETTINGS = ("run.checkpoint_every=1", "optim.learning_rate=1e-5")
VLLM = ("rollout.engine=vllm", "rollout.engine_cache_gib=0.25")


def words(home: Path, model: Path, *overrides: str) -> list[str]:
    return ["train", str(TINY), *small_settings(home, model, *SETTINGS, *VLLM, *overrides)]


@pytest.fixture(scope="module")
def whole(small_qwen3vl: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes that nothing happened to."""
    home = tmp_path_factory.mktemp("whole")
    agent = torchrun(words(home, small_qwen3vl))
    said, _ = agent.communicate(timeout=SECONDS)
    assert agent.returncode == 0, said
    return home / "run"


def test_two_engines_draw_and_choose_what_the_sampler_of_one_process_does(
    whole: Path, small_qwen3vl: Path, tmp_path: Path
) -> None:
    config = small_config(tmp_path, small_qwen3vl, *SETTINGS)
    alone = loop.train(config, Silent()).directory
    assert_same_run(whole, alone)
    engines = [step["engine"] for step in step_records(whole)]
    assert [each["version"] for each in engines] == [0, 1, 2, 3, 4]
    assert all(len(each["rescored_rows"]) == 4 for each in engines)
    assert all(0 < each["logprob_gap"] < 1e-5 for each in engines)
    assert verify(whole, draws=True).is_sound


def test_a_killed_process_comes_back_to_the_same_end(
    whole: Path, small_qwen3vl: Path, tmp_path: Path
) -> None:
    agent = torchrun(words(tmp_path, small_qwen3vl), "--max-restarts", "2")
    wait_for_checkpoint(tmp_path / "run", agent)
    os.kill(workers_of(agent)[1], signal.SIGKILL)
    said, _ = agent.communicate(timeout=SECONDS)
    assert agent.returncode == 0, said
    assert "Resuming after step" in said
    assert_same_end(tmp_path / "run", whole)


def test_adapters_of_two_processes_are_merged_into_what_it_loads(
    small_qwen3vl: Path, tmp_path: Path
) -> None:
    adapters = ("lora.rank=4", "run.steps=3")
    agent = torchrun(words(tmp_path, small_qwen3vl, *adapters))
    said, _ = agent.communicate(timeout=SECONDS)
    assert agent.returncode == 0, said
    config = small_config(tmp_path / "alone", small_qwen3vl, *SETTINGS, *adapters)
    assert_same_run(tmp_path / "run", loop.train(config, Silent()).directory)


def test_one_process_that_treats_its_parameters_like_several_uses_it_too(
    small_qwen3vl: Path, tmp_path: Path
) -> None:
    runs = [
        loop.train(
            small_config(tmp_path / name, small_qwen3vl, *SETTINGS, *settings), Silent()
        ).directory
        for name, settings in (("vllm", (*VLLM, "shard.always=true")), ("sampler", ()))
    ]
    assert_same_run(*runs)


def test_there_may_be_more_engines_than_prompts(small_qwen3vl: Path, tmp_path: Path) -> None:
    few = ("rollout.prompts_per_step=1", "run.steps=2")
    agent = torchrun(words(tmp_path, small_qwen3vl, *few))
    said, _ = agent.communicate(timeout=SECONDS)
    assert agent.returncode == 0, said
    assert [step["engine"]["rescored_rows"] for step in step_records(tmp_path / "run")] == [[0]] * 2


def test_a_cache_that_holds_no_prompt_is_the_sentence_of_all(
    small_qwen3vl: Path, tmp_path: Path
) -> None:
    agent = torchrun(words(tmp_path, small_qwen3vl, "rollout.engine_cache_gib=0.0001"))
    said, _ = agent.communicate(timeout=SECONDS)
    assert agent.returncode != 0
    assert said.count("bas-opd: vLLM cannot compute this model as the settings ask") == 1
    assert "[rank0]: Traceback" not in said
