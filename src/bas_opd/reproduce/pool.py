"""Runs tasks in several worker processes; each worker starts once and takes task after task.

Imports nothing heavy: a worker imports this module before it imports torch.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from bas_opd.errors import BasOpdError, PreemptionError
from bas_opd.run.stopping import StopFlag

SECONDS_BETWEEN_POLLS = 0.2

Task = TypeVar("Task")
Steps = Callable[[int], None]
"""Reports how many more steps of the task are done."""
Poll = Callable[[], None]
"""Raises if the process was asked to stop."""
Work = Callable[[Task, Steps, Poll], str]
"""Does a task and returns its outcome in a few words."""
Event = tuple[Task, Literal["stepped", "done", "failed"], Any]
"""A task took so many steps, ended with an outcome, or failed for a reason."""


@dataclass(slots=True, kw_only=True)
class _Worker(Generic[Task]):
    process: BaseProcess
    task: Task


def run_side_by_side(
    tasks: Sequence[Task], *, jobs: int, start: Callable[[], Work[Task]], logs: Path
) -> Iterator[Event[Task]]:
    """Run every task, `jobs` at a time, and yield events; a failure does not stop the others.

    `start` is called once in each worker, which has one thread. A stop signal is passed on to every
    worker, and no further task begins.
    """
    waiting, workers = deque(tasks), dict[Connection, _Worker[Task]]()
    stop, is_stopping = StopFlag(), False
    numbers = iter(range(1, len(tasks) + 1))
    with stop.listening():
        try:
            while workers or (waiting and not stop.reason):
                while waiting and len(workers) < jobs and not stop.reason:
                    connection, process = _start_worker(start, logs / f"worker-{next(numbers)}.log")
                    connection.send(waiting[0])
                    workers[connection] = _Worker(process=process, task=waiting.popleft())
                if stop.reason and not is_stopping:
                    is_stopping = True
                    for worker in workers.values():
                        worker.process.terminate()
                for connection in wait(list(workers), timeout=SECONDS_BETWEEN_POLLS):
                    assert isinstance(connection, Connection)
                    yield from _receive(connection, workers, waiting, stop)
        finally:
            for connection, worker in workers.items():
                worker.process.terminate()
                connection.close()
    if stop.reason:
        raise PreemptionError(
            f"Stopped by {stop.reason}. Finished runs are kept and started ones have a checkpoint; "
            "rerun the same command to resume."
        )


def _receive(
    connection: Connection,
    workers: dict[Connection, _Worker[Task]],
    waiting: deque[Task],
    stop: StopFlag,
) -> Iterator[Event[Task]]:
    """Handle one message of a worker, and send it the next task if it has finished one."""
    worker = workers[connection]
    event, content = "exited", None
    with contextlib.suppress(EOFError, OSError):
        event, content = connection.recv()
    if event in ("stepped", "done", "failed"):
        yield worker.task, event, content
        if event == "stepped":
            return
        if waiting and not stop.reason:
            worker.task = waiting.popleft()
            with contextlib.suppress(BrokenPipeError):  # reported as an exit at the next poll
                connection.send(worker.task)
            return
    del workers[connection]
    connection.close()  # which ends the worker
    worker.process.join()
    if event == "exited" and not stop.reason:
        yield worker.task, "failed", f"Its process ended with exit code {worker.process.exitcode}."
    elif event == "stopped" and not stop.reason:
        yield worker.task, "failed", "Its process was asked to stop by another process."


def _start_worker(start: Callable[[], Work[Task]], log: Path) -> tuple[Connection, BaseProcess]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, start, log), daemon=True)
    process.start()
    theirs.close()  # so that the exit of the process closes the connection
    return ours, process


def _serve(connection: Connection, start: Callable[[], Work[Any]], log: Path) -> None:
    """Run tasks until the connection closes: the main function of a worker."""
    # Ctrl-C is sent to a whole process group. Only the parent shall receive it, and pass it on
    # once: a second signal means "stop at once".
    os.setpgid(0, 0)
    _redirect_output(log)
    # Before torch is imported: many processes with many threads each slow each other down.
    os.environ["OMP_NUM_THREADS"] = "1"
    stop = StopFlag()
    work: Work[Any] | None = None
    with stop.listening():
        while True:
            try:
                task = connection.recv()
            except EOFError:
                return
            try:
                work = work or start()
                stop.poll()
                outcome = work(task, lambda n: connection.send(("stepped", n)), stop.poll)
                connection.send(("done", outcome))
            except PreemptionError:
                connection.send(("stopped", ""))
                return
            except BasOpdError as error:
                connection.send(("failed", str(error)))
            except Exception as error:  # any error fails this task, not the next one
                traceback.print_exc()
                reason = f"{type(error).__name__}: {error}. {log} has the traceback."
                connection.send(("failed", reason))


def _redirect_output(log: Path) -> None:
    """Send standard output and error to a file: those of many workers would hide the parent's."""
    sys.stdout.flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
