"""Tasks side by side in processes of their own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pool_workers
import pytest

from bas_opd.errors import PreemptionError
from bas_opd.reproduce.pool import run_side_by_side


class Heard:
    """A listener that writes down what it hears, and may send this process a signal."""

    def __init__(self, signal_at_step: int | None = None) -> None:
        self.finished: dict[str, str] = {}
        self.failures: dict[str, str] = {}
        self._signal = signal_at_step

    def stepped(self, task: str, steps: int) -> None:
        if self._signal is not None:
            os.kill(os.getpid(), self._signal)

    def done(self, task: str, words: str) -> None:
        self.finished[task] = words

    def failed(self, task: str, reason: str) -> None:
        self.failures[task] = reason


def run(tasks: list[str], folder: Path, heard: Heard, *, jobs: int = 1) -> None:
    run_side_by_side(tasks, jobs=jobs, start=pool_workers.start, logs=folder, listener=heard)


def test_a_task_that_fails_is_told_of_and_the_others_go_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    heard = Heard()
    run(["one", "refuse", "two", "break", "crash", "terminate", "three"], tmp_path, heard)
    assert set(heard.finished) == {"one", "two", "three"}
    assert heard.failures["refuse"] == "This was refused."
    assert heard.failures["break"].startswith("KeyError: 'missing'")
    assert "exit code 9" in heard.failures["crash"]
    assert "asked to stop by somebody else" in heard.failures["terminate"]
    # One process took task after task; only one that ended was replaced.
    assert heard.finished["one"] == heard.finished["two"] != heard.finished["three"]
    process, group, threads = heard.finished["one"].split()
    assert process == group, "Ctrl-C in the parent's group would reach it"
    assert threads == "1"
    log = (tmp_path / "worker-1.log").read_text()
    assert "said aloud" in log
    assert "Traceback" in log
    assert capfd.readouterr() == ("", "")


def test_tasks_run_at_the_same_time(tmp_path: Path) -> None:
    heard = Heard()
    run([f"meet {tmp_path / '0'}", f"meet {tmp_path / '1'}"], tmp_path, heard, jobs=2)
    assert len(heard.finished) == 2
    assert heard.failures == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_asks_every_process_and_begins_nothing_more(
    tmp_path: Path, number: signal.Signals
) -> None:
    heard = Heard(number)
    handler = signal.getsignal(number)
    with pytest.raises(PreemptionError, match=f"Stopped by {number.name}.*same command goes on"):
        run(["wait", "one"], tmp_path, heard)
    assert heard.finished == heard.failures == {}
    assert signal.getsignal(number) == handler


def test_a_task_that_ends_after_the_stop_is_done_and_none_follows(tmp_path: Path) -> None:
    heard = Heard(signal.SIGTERM)
    with pytest.raises(PreemptionError):
        run(["late", "one"], tmp_path, heard)
    assert set(heard.finished) == {"late"}
    assert heard.failures == {}


def test_without_tasks_nothing_is_started(tmp_path: Path) -> None:
    run([], tmp_path, Heard())
    assert list(tmp_path.iterdir()) == []
