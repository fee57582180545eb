"""The console of someone who looks on: a live view on a terminal, plain lines anywhere else."""

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
from bas_opd.run.following import RecordFollower
from bas_opd.run.lock import owner_of
from bas_opd.text import printable

RECORDS = "records.jsonl"


def look_once(run: Path) -> None:
    """Print how a run stands."""
    watched, follower = Watched(), _follower(run)
    for event in follower.read().events:
        watched.add(event)
    with Console() as console:
        console.message("\n".join((_headline(run, watched), *watched.lines())))


def look_on(run: Path, *, every: float) -> None:
    """Show a run until it has finished, however often it is stopped and taken up again."""
    watched, follower = Watched(), _follower(run)
    with Console() as console:
        with _view(console) as view:
            while watched.totals is None and not console.is_deaf:
                news = follower.read()
                if news.is_anew:
                    watched = Watched()
                for event in news.events:
                    watched.add(event)
                    view.heard(watched, event)
                view.look(run, watched)
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

    def heard(self, watched: Watched, event: Mapping[str, Any]) -> None:
        """Tell a step that was not told yet; after a resume, those that are taken anew."""
        if event["event"] == "resumed":
            self._shown = min(self._shown, event["step"])
            self._console.message(f"Resumed after step {event['step']}.")
        elif event["event"] == "step" and event["step"] >= self._shown:
            self._shown = event["step"] + 1
            self._console.message(watched.line(event))

    def look(self, run: Path, watched: Watched) -> None:
        """Say who trains the run, when that changes."""
        state = _headline(run, watched)
        if state != self._state and watched.totals is None:
            self._console.message(state)
        self._state = state


class _Display:
    """One view that is drawn anew at every look."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def heard(self, watched: Watched, event: Mapping[str, Any]) -> None: ...

    def look(self, run: Path, watched: Watched) -> None:
        """Draw how the run stands."""
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
    return f"{run}: nobody trains it now; the same train command goes on"


def _follower(run: Path) -> RecordFollower:
    if not run.is_dir():
        raise DataError(
            f"{run} is not a folder, so there is no run to watch. Name the folder that "
            "`bas-opd train` writes to, once it has begun."
        )
    return RecordFollower(run / RECORDS)
