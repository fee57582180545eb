"""Tasks side by side in processes of their own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pool_workers
import pytest

from bas_opd.errors import PreemptionError
from bas_opd.reproduce.pool import run_side_by_side


class Events:
    """Keeps how tasks ended, and may send this process a signal at a step."""

    def __init__(self, signal_at_step: int | None = None) -> None:
        self.finished: dict[str, str] = {}
        self.failures: dict[str, str] = {}
        self.signal = signal_at_step


def run(tasks: list[str], folder: Path, events: Events, *, jobs: int = 1) -> None:
    for task, event, content in run_side_by_side(
        tasks, jobs=jobs, start=pool_workers.start, logs=folder
    ):
        if event == "stepped":
            if events.signal is not None:
                os.kill(os.getpid(), events.signal)
        else:
            (events.finished if event == "done" else events.failures)[task] = content


def test_a_task_that_fails_is_reported_and_the_others_continue(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    events = Events()
    run(["one", "refuse", "two", "break", "crash", "terminate", "three"], tmp_path, events)
    assert set(events.finished) == {"one", "two", "three"}
    assert events.failures["refuse"] == "This was refused."
    assert events.failures["break"].startswith("KeyError: 'missing'")
    assert "exit code 9" in events.failures["crash"]
    assert "asked to stop by another process" in events.failures["terminate"]
    # One process took task after task; only one that ended was replaced.
    assert events.finished["one"] == events.finished["two"] != events.finished["three"]
    process, group, threads = events.finished["one"].split()
    assert process == group, "Ctrl-C in the parent's group would reach it"
    assert threads == "1"
    log = (tmp_path / "worker-1.log").read_text()
    assert "said aloud" in log
    assert "Traceback" in log
    assert capfd.readouterr() == ("", "")


def test_tasks_run_at_the_same_time(tmp_path: Path) -> None:
    events = Events()
    run([f"meet {tmp_path / '0'}", f"meet {tmp_path / '1'}"], tmp_path, events, jobs=2)
    assert len(events.finished) == 2
    assert events.failures == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_reaches_every_worker_and_no_task_begins_after_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    events = Events(number)
    handler = signal.getsignal(number)
    with pytest.raises(PreemptionError, match=f"Stopped by {number.name}.*rerun .* to resume"):
        run(["wait", "one"], tmp_path, events)
    assert events.finished == events.failures == {}
    assert signal.getsignal(number) == handler


def test_a_task_that_ends_after_the_stop_signal_counts_and_none_follows(tmp_path: Path) -> None:
    events = Events(signal.SIGTERM)
    with pytest.raises(PreemptionError):
        run(["late", "one"], tmp_path, events)
    assert set(events.finished) == {"late"}
    assert events.failures == {}


def test_without_tasks_nothing_is_started(tmp_path: Path) -> None:
    run([], tmp_path, Events())
    assert list(tmp_path.iterdir()) == []
