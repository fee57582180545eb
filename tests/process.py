"""`bas-opd` in a process of its own, with something armed to go wrong in it.

A child is forked from the test's process, which has torch loaded already: a command then starts in
milliseconds. What a fault replaces, it replaces in the child alone.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

import torch
from run_states import assert_same_end

from bas_opd.run.record_file import RecordWriter

Fault = Callable[[], None]
"""Called in the child before the command; arms what is to go wrong."""

SECONDS = 120
"""No command here takes longer unless it hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a process ended: its exit code or minus its signal, and all that it printed."""

    code: int
    output: str

    def is_explained(self, code: int, sentence: str) -> bool:
        """Whether it failed with this code and this sentence, and without a traceback."""
        explained = sentence in " ".join(self.output.split()) and "Traceback" not in self.output
        return self.code == code and explained


class Command:
    """A `bas-opd` command that is running."""

    def __init__(self, *arguments: object, fault: Fault | None = None) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `wait`)
        # More threads than this one in the parent would leave their locks held in the child.
        torch.set_num_threads(1)
        self._process = multiprocessing.get_context("fork").Process(
            target=_in_child, args=([str(word) for word in arguments], fault, self._log.fileno())
        )
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def wait_for(self, sentence: str) -> None:
        """Return once the command has printed a text."""
        deadline = time.monotonic() + SECONDS
        while sentence not in self._output():
            assert time.monotonic() < deadline, f"It never said {sentence!r}: {self._output()}"
            assert self._process.is_alive(), self._output()
            time.sleep(0.01)

    def wait_for_cpu(self, seconds: float) -> None:
        """Return once the command has computed so long, or has ended."""
        while self.is_alive and self.cpu_seconds < seconds:
            time.sleep(0.002)

    @property
    def is_alive(self) -> bool:
        """Whether it still runs; one that has ended keeps its clock until it is asked."""
        return self._process.is_alive()

    @property
    def cpu_seconds(self) -> float:
        """What it has computed so far: unlike the time of day, the same on a busy machine."""
        try:
            return time.clock_gettime((~self.pid << 3) | 2)  # as clock_getcpuclockid builds it
        except OSError:
            return math.inf  # It has ended.

    def send(self, number: signal.Signals) -> None:
        if self._process.is_alive():
            os.kill(self.pid, number)

    def wait(self) -> Ended:
        """Return how it ended; a process that hangs is killed, and the test with it."""
        self._process.join(SECONDS)
        has_hung = self._process.is_alive()
        if has_hung:
            self._process.kill()
            self._process.join()
        output, code = self._output(), self._process.exitcode
        self._log.close()
        self._process.close()
        assert not has_hung, f"It hung: {output}"
        assert code is not None
        return Ended(code=code, output=output)

    def _output(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        # Not `read`: child and parent share the place in the file.
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")


Train = Callable[..., Ended]
"""`train(run, *overrides, fault=None)`: one `bas-opd train` from its beginning to its end."""


def bas_opd(*arguments: object, fault: Fault | None = None) -> Ended:
    """Run a `bas-opd` command to its end."""
    return Command(*arguments, fault=fault).wait()


def at(
    owner: Any, name: str, act: Callable[[], Any], *, call: int = 2, before: bool = False
) -> Fault:
    """Let something happen at the n-th call of a function, after it unless told before."""

    def arm() -> None:
        original, calls = getattr(owner, name), 0

        def watched(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            is_now = calls == call
            if is_now and before:
                act()
            result = original(*args, **kwargs)
            if is_now and not before:
                act()
            return result

        setattr(owner, name, watched)

    return arm


def changed(owner: Any, name: str, change: Callable[[Any], Any], *, calls: set[int]) -> Fault:
    """Let a function return something else at some of its calls, counted from 1."""

    def arm() -> None:
        original, seen = getattr(owner, name), 0

        def altered(*args: Any, **kwargs: Any) -> Any:
            nonlocal seen
            seen += 1
            result = original(*args, **kwargs)
            return change(result) if seen in calls else result

        setattr(owner, name, altered)

    return arm


def torn_record(act: Callable[[], Any]) -> Fault:
    """Let something happen in the middle of the second step's record."""

    def arm() -> None:
        owner: Any = RecordWriter
        write = owner.write

        def torn(records: Any, event: Any) -> None:
            if event.get("step") == 1:
                records._file.write(b'{"schema_version":1,"event":"step","step":1,"exam')
                act()
            write(records, event)

        owner.write = torn

    return arm


def die() -> NoReturn:
    """End this process as a power failure would."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def ask_to_stop(number: signal.Signals = signal.SIGTERM) -> None:
    """Send this process a signal."""
    os.kill(os.getpid(), number)


def fail(error: BaseException) -> Callable[[], NoReturn]:
    """Return an act that raises."""

    def act() -> NoReturn:
        raise error

    return act


class Payload:
    """What a pickle runs when it is loaded: it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (open, (str(self.mark), "w"))


def resumes_to(run: Path, whole: Path, train: Train, *, sentence: str = "") -> None:
    """Take a run up again: it must end as the whole one did and leave nothing half done."""
    ended = train(run)
    assert ended.code == 0, ended.output
    assert sentence in " ".join(ended.output.split())
    assert_same_end(run, whole)
    assert not list(run.rglob(".*"))
    assert not list(run.rglob("*.partial"))


def _in_child(arguments: list[str], fault: Fault | None, log: int) -> None:
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    # The parent's are pytest's.
    sys.stdout, sys.stderr = (
        os.fdopen(descriptor, "w", buffering=1, encoding="utf-8", closefd=False)
        for descriptor in (1, 2)
    )
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from bas_opd.cli.main import app

    if fault is not None:
        fault()
    app(arguments)
