"""How far a command is: bars on a terminal, and lines of text anywhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from bas_opd.runtime.console import printable


class Board:
    """Shows one bar after another on standard error; use it as a context.

    The bars go away at its end, and the lines stay.
    """

    def __init__(self) -> None:
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

    def __enter__(self) -> Board:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def start(self, steps: int, what: str = "steps", *, done: int = 0) -> None:
        """Begin a bar; the one before stays as it is."""
        self._bar = self._bars.add_task(what, total=steps, completed=done)

    def advance(self, steps: int = 1) -> None:
        """Move the newest bar on."""
        if self._bar is not None:
            self._bars.advance(self._bar, steps)

    def message(self, text: str) -> None:
        """Print a line, which may hold anything a server or a model wrote."""
        self._bars.console.print(printable(text), soft_wrap=True)
