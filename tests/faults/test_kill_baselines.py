"""Runs of the other methods, killed and taken up again, end as if nothing had happened."""

from __future__ import annotations

import os
import random
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from baseline_fixtures import SHORT, graded_by_even_tokens
from process import Command, Ended, Fault, at, bas_opd, die, resumes_to, torn_record

from bas_opd.learn.learner import Learner
from bas_opd.methods.reward import RuleReward
from bas_opd.rollout import Sampler
from bas_opd.run import steps
from bas_opd.run.record_file import RecordWriter
from bas_opd.run.state import TrainState

METHODS = ("sft", "grpo", "grpo-released", "dapo", "opsd")
MOMENTS = 6
Words = Callable[[Path], list[str]]
Train = Callable[..., Ended]

pytestmark = pytest.mark.slow


def graded(fault: Fault | None = None) -> Fault:
    """Arm rewards that a random model earns now and then, and then a fault."""

    def arm() -> None:
        owner: Any = RuleReward
        owner.__call__ = graded_by_even_tokens()
        if fault is not None:
            fault()

    return arm


@pytest.fixture(scope="module", params=METHODS)
def words(request: pytest.FixtureRequest, model: Path, data: Path) -> Words:
    settings = (*SHORT, "run.checkpoint_every=1", f"model.path={model}", f"data.path={data}")
    return lambda run: ["train", request.param, *settings, f"run.output={run}"]


@pytest.fixture(scope="module")
def train(words: Words) -> Train:
    def run_to_its_end(run: Path, fault: Fault | None = None) -> Ended:
        return bas_opd(*words(run), fault=graded(fault))

    return run_to_its_end


@pytest.fixture(scope="module")
def whole(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    ended = train(run)
    assert ended.code == 0, ended.output
    return run


def kill(owner: Any, name: str, sentence: str, *, call: int = 2, before: bool = False) -> Any:
    return pytest.param(at(owner, name, die, call=call, before=before), id=sentence)


KILLS = [
    kill(Sampler, "generate", "after the rollouts"),
    kill(Learner, "accumulate", "with gradients and no update"),
    kill(Learner, "update", "after an update"),
    kill(RecordWriter, "write", "after the record, before its checkpoint", call=3),
    pytest.param(torn_record(die), id="in the middle of a record"),
    kill(TrainState, "capture", "after the copy of the state"),
    kill(os, "rename", "before the rename of a checkpoint", before=True),
    kill(steps, "_save_model", "before the model is saved", call=1, before=True),
]


@pytest.mark.parametrize("fault", KILLS)
def test_killed(fault: Fault, train: Train, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = train(run, fault)
    assert ended.code == -signal.SIGKILL, ended.output
    resumes_to(run, whole, train)


@pytest.fixture(scope="module")
def cpu_seconds(train: Train, whole: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    """What a run costs, in seconds of computing."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    train(tmp_path_factory.mktemp("timed") / "run")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_killed_at_a_random_moment(
    moment: int, cpu_seconds: float, words: Words, train: Train, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    going = Command(*words(run), fault=graded())
    # One draw in each part of a run, so that together they cover all of it.
    going.wait_for_cpu((moment + random.Random(moment).random()) / MOMENTS * cpu_seconds)
    going.send(signal.SIGKILL)
    # The later moments may come too late: another run was timed, on a busier machine perhaps.
    assert going.wait().code in (-signal.SIGKILL, 0 if moment > MOMENTS / 2 else None)
    resumes_to(run, whole, train)
