"""`bas-opd watch`: a live view of a run on a terminal, plain lines anywhere else."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rich.console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from bas_opd.commands.watched import Watched
from bas_opd.errors import DataError
from bas_opd.run.console import Console
from bas_opd.run.directory import RunDirectory
from bas_opd.run.lock import owner_of
from bas_opd.run.record import RecordFollower, StepRecord
from bas_opd.text import printable


def show_once(run: Path) -> None:
    """Print the state of a run."""
    watched, follower = Watched(), _follower(run)
    for event in follower.read().events:
        watched.add(event)
    with Console() as console:
        console.message("\n".join((_headline(run, watched), *watched.lines())))


def follow(run: Path, *, every: float) -> None:
    """Show a run until it has finished, however often it is stopped and resumed."""
    watched, follower = Watched(), _follower(run)
    with Console() as console:
        with _view(console) as view:
            while watched.totals is None and not console.pipe_closed:
                news = follower.read()
                if news.from_start:
                    watched = Watched()
                for event in news.events:
                    view.update(watched, event, watched.add(event))
                view.refresh(run, watched)
                if watched.totals is None:
                    time.sleep(every)
        if watched.totals is not None:
            console.finish(watched.totals)
            console.message(f"The run in {run} has finished.")


class _Lines:
    """A line for each step, as training prints it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = 0
        self._state = ""

    def update(self, watched: Watched, event: Mapping[str, Any], step: StepRecord | None) -> None:
        """Print a step that was not printed yet; after a resume, those that are repeated."""
        if event["event"] == "resumed":
            self._shown = min(self._shown, event["step"])
            self._console.message(f"Resumed after step {event['step']}.")
        elif step is not None and step.step >= self._shown:
            self._shown = step.step + 1
            self._console.message(watched.line(step))

    def refresh(self, run: Path, watched: Watched) -> None:
        """Print which process trains the run, when that changes."""
        state = _headline(run, watched)
        if state != self._state and watched.totals is None:
            self._console.message(state)
        self._state = state


class _Display:
    """One view that is redrawn at every refresh."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def update(
        self, watched: Watched, event: Mapping[str, Any], step: StepRecord | None
    ) -> None: ...

    def refresh(self, run: Path, watched: Watched) -> None:
        """Draw the state of the run."""
        self._live.update(_display(run, watched), refresh=True)


@contextmanager
def _view(console: Console) -> Iterator[_Lines | _Display]:
    out = rich.console.Console(markup=False, highlight=False, emoji=False)
    if not out.is_terminal or out.is_dumb_terminal or os.environ.get("CI"):
        yield _Lines(console)
        return
    with Live(console=out, auto_refresh=False, transient=True) as live:
        yield _Display(live)


def _display(run: Path, watched: Watched) -> rich.console.Group:
    lines = (Text(printable(line), no_wrap=True, overflow="ellipsis") for line in watched.lines())
    bar = ProgressBar(total=max(1, watched.total), completed=watched.done)
    return rich.console.Group(Text(printable(_headline(run, watched)), style="bold"), *lines, bar)


def _headline(run: Path, watched: Watched) -> str:
    if watched.totals is not None:
        return f"{run}: finished"
    if owner := owner_of(run):
        return f"{run}: trained by {owner}"
    if not watched.total:
        return f"{run}: no run has begun here"
    return f"{run}: no process trains it now; rerun its train command to resume"


def _follower(run: Path) -> RecordFollower:
    if not run.is_dir():
        raise DataError(
            f"{run} is not a folder, so there is no run to watch. Name the folder that "
            "`bas-opd train` writes to, once it has begun."
        )
    return RecordFollower(RunDirectory(path=run).records)
