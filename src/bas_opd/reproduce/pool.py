"""Many tasks, several processes: each process starts once and takes task after task.

Imports nothing heavy: a new process gets here before it imports torch.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from bas_opd.errors import BasOpdError, PreemptionError
from bas_opd.run.stopping import StopFlag

SECONDS_BETWEEN_LOOKS = 0.2

Task = TypeVar("Task")
Heard = TypeVar("Heard", contravariant=True)
Steps = Callable[[int], None]
"""Hears how many more steps of the task are done."""
Poll = Callable[[], None]
"""Raises if the process was asked to stop."""
Work = Callable[[Task, Steps, Poll], str]
"""Does a task and says in a few words how it went."""


class Listener(Protocol[Heard]):
    """Who hears how the tasks go."""

    def stepped(self, task: Heard, steps: int) -> None: ...
    def done(self, task: Heard, words: str) -> None: ...
    def failed(self, task: Heard, reason: str) -> None: ...


@dataclass(slots=True, kw_only=True)
class _Hand(Generic[Task]):
    process: BaseProcess
    task: Task


def run_side_by_side(
    tasks: Sequence[Task],
    *,
    jobs: int,
    start: Callable[[], Work[Task]],
    logs: Path,
    listener: Listener[Task],
) -> None:
    """Do every task, `jobs` at a time; one that fails is told of, and the others go on.

    `start` is called once in each process, with one thread a process. When asked to stop, every
    process is, and what they had begun is left as they leave it.
    """
    waiting, hands = deque(tasks), dict[Connection, _Hand[Task]]()
    stop, is_told = StopFlag(), False
    numbers = iter(range(1, len(tasks) + 1))
    with stop.listening():
        try:
            while hands or (waiting and not stop.reason):
                while waiting and len(hands) < jobs and not stop.reason:
                    connection, process = _hire(start, logs / f"worker-{next(numbers)}.log")
                    connection.send(waiting[0])
                    hands[connection] = _Hand(process=process, task=waiting.popleft())
                if stop.reason and not is_told:
                    is_told = True
                    for hand in hands.values():
                        hand.process.terminate()
                for connection in wait(list(hands), timeout=SECONDS_BETWEEN_LOOKS):
                    assert isinstance(connection, Connection)
                    _hear(connection, hands, waiting, stop, listener)
        finally:
            for connection, hand in hands.items():
                hand.process.terminate()
                connection.close()
    if stop.reason:
        raise PreemptionError(
            f"Stopped by {stop.reason}. What is finished is kept, what was begun has a checkpoint; "
            "the same command goes on."
        )


def _hear(
    connection: Connection,
    hands: dict[Connection, _Hand[Task]],
    waiting: deque[Task],
    stop: StopFlag,
    listener: Listener[Task],
) -> None:
    """Take one message of a process, and give it its next task if it has done its last."""
    hand = hands[connection]
    try:
        what, content = connection.recv()
    except (EOFError, OSError):
        del hands[connection]
        connection.close()
        hand.process.join()
        if not stop.reason:
            code = hand.process.exitcode
            listener.failed(hand.task, f"Its process ended with exit code {code}.")
        return
    if what == "stepped":
        listener.stepped(hand.task, content)
        return
    if what == "done":
        listener.done(hand.task, content)
    elif what == "failed":
        listener.failed(hand.task, content)
    elif not stop.reason:
        listener.failed(hand.task, "Its process was asked to stop by somebody else.")
    if waiting and what != "stopped" and not stop.reason:
        hand.task = waiting.popleft()
        with contextlib.suppress(BrokenPipeError):  # its end is heard at the next look
            connection.send(hand.task)
    else:
        del hands[connection]
        connection.close()  # which the process sees as the end
        hand.process.join()


def _hire(start: Callable[[], Work[Task]], log: Path) -> tuple[Connection, BaseProcess]:
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, start, log), daemon=True)
    process.start()
    theirs.close()  # so that the end of the process is the end of the connection
    return mine, process


def _serve(connection: Connection, start: Callable[[], Work[Any]], log: Path) -> None:
    """Do tasks until there are no more: the life of a process."""
    # Ctrl-C reaches a whole process group. Here only the parent shall hear it, and pass it on once:
    # a second signal means "at once".
    os.setpgid(0, 0)
    _print_into(log)
    # Before torch is imported: many processes with many threads each only get in each other's way.
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
                words = work(task, lambda n: connection.send(("stepped", n)), stop.poll)
                connection.send(("done", words))
            except PreemptionError:
                connection.send(("stopped", ""))
                return
            except BasOpdError as error:
                connection.send(("failed", str(error)))
            except Exception as error:  # whatever it is, it is this task's, not the next one's
                traceback.print_exc()
                reason = f"{type(error).__name__}: {error}. {log} has the traceback."
                connection.send(("failed", reason))


def _print_into(log: Path) -> None:
    """Send what libraries print to a file: a dozen processes would drown the parent's words."""
    sys.stdout.flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
