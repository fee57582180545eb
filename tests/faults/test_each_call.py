"""Every call to the file system fails once: nothing published is lost, the next run ends the same.

A sample; `make soak` lets each call fail in each way.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from failing_calls import KINDS, FailingCall, PowerCut, assert_unharmed, count_calls
from process import Train, bas_opd, resumes_to
from run_states import assert_same_end

SAMPLE = range(8)
SHORT = ("run.steps=2", "run.keep_checkpoints=1")


@pytest.fixture(scope="module")
def two_steps(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps that nothing happened to."""
    run = tmp_path_factory.mktemp("two") / "run"
    assert train(run, *SHORT).code == 0
    return run


@pytest.fixture(scope="module")
def calls_of_a_run(train: Train, tmp_path_factory: pytest.TempPathFactory) -> int:
    run = tmp_path_factory.mktemp("counted") / "run"
    return count_calls(lambda fault: train(run, *SHORT, fault=fault))


@pytest.mark.parametrize("share", SAMPLE)
def test_of_a_run(
    share: int, train: Train, two_steps: Path, calls_of_a_run: int, tmp_path: Path
) -> None:
    number = 1 + share * calls_of_a_run // len(SAMPLE)
    run = tmp_path / "run"
    ended = train(run, *SHORT, fault=FailingCall(number, KINDS[share % len(KINDS)]))
    assert_unharmed(ended, run)
    assert train(run, *SHORT).code == 0
    assert_same_end(run, two_steps)
    assert not list(run.rglob("*.partial"))


@pytest.fixture(scope="module")
def calls_of_a_resume(
    train: Train, stopped_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> int:
    run = shutil.copytree(stopped_run, tmp_path_factory.mktemp("counted") / "run")
    return count_calls(lambda fault: train(run, fault=fault))


@pytest.mark.parametrize("share", SAMPLE)
def test_of_a_resume(
    share: int, train: Train, whole: Path, stopped: Path, calls_of_a_resume: int
) -> None:
    number = 1 + share * calls_of_a_resume // len(SAMPLE)
    ended = train(stopped, fault=FailingCall(number, KINDS[(share + 2) % len(KINDS)]))
    assert_unharmed(ended, stopped)
    resumes_to(stopped, whole, train)


@pytest.mark.parametrize("share", SAMPLE)
def test_the_power_may_fail_at_any_call(
    share: int, train: Train, two_steps: Path, calls_of_a_run: int, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    number = 2 + share * calls_of_a_run // len(SAMPLE)
    assert train(run, *SHORT, fault=PowerCut(number, seed=share)).code == -signal.SIGKILL
    assert train(run, *SHORT).code == 0
    assert_same_end(run, two_steps)


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["1", "2"])
def test_the_soak_says_in_one_line_what_it_did(processes: str) -> None:
    """`make soak`, for a few faults."""
    tests = Path(__file__).parents[1]
    soak = subprocess.run(
        [
            *(sys.executable, tests / "faults" / "soak.py"),
            *("--seconds", "5", "--processes", processes),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tests, *sys.path)))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert soak.returncode == 0, soak.stdout + soak.stderr
    (line,) = soak.stdout.splitlines()
    assert line.startswith("Soaked with seed")
    assert line.endswith("All ended as undisturbed.")


@pytest.mark.parametrize("share", SAMPLE[::2])
def test_of_an_export(share: int, whole: Path, tmp_path: Path) -> None:
    words = ("export", whole)
    calls = count_calls(lambda fault: bas_opd(*words, tmp_path / "counted", fault=fault))
    number, out = 1 + share * calls // len(SAMPLE), tmp_path / "out"
    ended = bas_opd(*words, out, fault=FailingCall(number, KINDS[share % len(KINDS)]))
    assert_unharmed(ended, whole)
    if ended.code:
        assert not list(tmp_path.glob("*out*"))
        assert bas_opd(*words, out).code == 0
    expected, found = (tmp_path / each / "model.safetensors" for each in ("counted", "out"))
    assert found.read_bytes() == expected.read_bytes()
