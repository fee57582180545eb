"""Progress of a command: bars on a terminal, and lines of text anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from bas_opd.text import duration, printable

SECONDS_BETWEEN_LINES = 60.0


class Board:
    """Shows `Progress` as one bar after another on standard error; use it as a context.

    The bars disappear at the end, and the lines stay. Without a terminal, as in a log, it prints a
    line a minute.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        stderr = Console(stderr=True, markup=False, highlight=False)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=stderr,
            disable=not stderr.is_terminal,
            transient=True,
        )
        self._bar: TaskID | None = None
        self._clock = clock
        self._began = self._printed = clock()
        self._done_before = 0

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def start(self, total: int | None, what: str = "steps", *, done: int = 0) -> None:
        """Begin a bar, of unknown length without a total; the one before stays as it is."""
        self._bars.start()  # not before: a question may be asked first
        self._began, self._done_before = self._clock(), done
        self._bar = self._bars.add_task(what, total=total, completed=done)

    def advance(self, count: int = 1) -> None:
        """Move the newest bar on."""
        if self._bar is not None:
            self._bars.advance(self._bar, count)
            now = self._clock()
            if self._bars.disable and now - self._printed >= SECONDS_BETWEEN_LINES:
                self._printed = now
                self.message(self._line(self._bars.tasks[self._bar], now))

    def message(self, text: str) -> None:
        """Print a line; control characters of a server's or model's text are escaped."""
        self._bars.console.print(printable(text), soft_wrap=True)

    def _line(self, bar: Task, now: float) -> str:
        done = round(bar.completed)
        if bar.total is None:
            return f"{bar.description}: {done:,}"
        total = round(bar.total)
        left = (now - self._began) / max(1, done - self._done_before) * (total - done)
        return f"{bar.description}: {done:,} of {total:,}, about {duration(left)} left"
