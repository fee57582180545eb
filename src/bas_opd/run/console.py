"""The console of a run: a live view on a terminal, plain lines anywhere else."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import rich.console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bas_opd.run.directory import RunDirectory
from bas_opd.run.record import EvaluationRecord, StepRecord
from bas_opd.run.view import LEDGER, RunView, legend, shown_total, shown_totals
from bas_opd.text import duration, printable


class _Output(rich.console.Console):
    """An output that survives a broken pipe, as behind `head`: the run continues."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class Console:
    """Shows the progress of a run; use it as a context, so that a failure frees the terminal."""

    def __init__(self, file: IO[str] | None = None, *, run: Path | None = None) -> None:
        """`run` is the directory of a run of one's own: its earlier steps count, and lines are
        explained."""
        self._run = run
        self._out = _Output(file=file, markup=False, highlight=False, emoji=False)
        self._live: Live | None = None
        self._status = ""
        self._explained: set[str] = set()
        self.view = RunView()

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    @property
    def pipe_closed(self) -> bool:
        """Whether standard output was closed, as behind `head`."""
        return self._out.quiet

    def start(self, total: int, what: str = "steps", *, done: int = 0) -> None:
        """Begin the view of a run of `total` steps, `done` of which are finished already."""
        self.view = RunView(total=total, done=done)
        if done and self._run is not None:
            self.view.catch_up(RunDirectory(path=self._run))
        is_live = self._out.is_terminal and not self._out.is_dumb_terminal
        if is_live and self._live is None and not os.environ.get("CI"):
            self._live = Live(console=self._out, auto_refresh=False, transient=True)
            self._live.start()

    def advance(self, count: int = 1) -> None:
        """Count steps without showing them."""
        self.view.done += count

    def step(self, step: StepRecord) -> None:
        """Show one step, given its record."""
        if self._run is not None and (words := legend(step, self._explained)):
            self.message(words)
        self.view.add(step)
        if self._live is None:
            self.message(self.view.line())
        self._refresh()

    def evaluated(self, evaluation: EvaluationRecord) -> None:
        """Show an evaluation, given its record."""
        self.view.add_evaluation(evaluation)
        if self._live is None:
            self.message(self.view.evaluation_line())
        self._refresh()

    def status(self, text: str) -> None:
        """Show what the run is doing, whenever that changes."""
        if text != self._status and self._live is None:
            self.message(text)
        self._status = text
        self._refresh()

    def message(self, text: str) -> None:
        """Print a line of text, which may hold anything a dataset or a model wrote."""
        with self._for_the_run():
            self._out.print(Text(printable(text)), soft_wrap=True)

    def finish(self, totals: Mapping[str, Any]) -> None:
        """End the view with the table of the ledger's totals."""
        self._stop()
        table = Table(title="Ledger", title_justify="left", show_header=False)
        table.add_column()
        table.add_column(justify="right")
        for name in shown_totals(totals):
            table.add_row(LEDGER[name], shown_total(name, totals))
        for phase, seconds in totals["seconds"].items():
            table.add_row(f"time: {printable(phase)}", duration(seconds))
        with self._for_the_run():
            self._out.print(table)

    def _refresh(self) -> None:
        if self._live is None:
            return
        shown = [Text(printable(self._status), style="bold")] if self._status else []
        shown += [
            Text(printable(line), no_wrap=True, overflow="ellipsis") for line in self.view.lines()
        ]
        # The bar comes last because it does not end its line.
        bar = ProgressBar(total=max(1, self.view.total), completed=self.view.done)
        with self._for_the_run():
            self._live.update(rich.console.Group(*shown, bar), refresh=True)

    @contextmanager
    def _for_the_run(self) -> Iterator[None]:
        """Let a run of one's own continue when nothing can be printed any more."""
        try:
            yield
        except (OSError, UnicodeEncodeError):
            if self._run is None:
                raise

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
