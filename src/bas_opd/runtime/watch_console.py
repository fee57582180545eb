"""The console of someone who looks on: a live view on a terminal, plain lines anywhere else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import rich.console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from bas_opd.errors import DataError
from bas_opd.runtime.console import Console, printable
from bas_opd.runtime.following import RecordFollower
from bas_opd.runtime.lock import owner_of
from bas_opd.runtime.watching import Watched

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
    out = rich.console.Console(markup=False, highlight=False, emoji=False)
    is_live = out.is_terminal and not out.is_dumb_terminal and not os.environ.get("CI")
    with Console() as console:
        with Live(console=out, auto_refresh=False, transient=True) if is_live else console as view:
            while watched.totals is None:
                news = follower.read()
                if news.is_anew:
                    watched = Watched()
                for event in news.events:
                    watched.add(event)
                    if event["event"] == "step" and not is_live:
                        console.message(watched.line(event))
                if isinstance(view, Live):
                    view.update(_display(run, watched), refresh=True)
                if watched.totals is None:
                    time.sleep(every)
        console.finish(watched.totals)
        console.message(f"The run in {run} has finished.")


def _display(run: Path, watched: Watched) -> rich.console.Group:
    lines = (Text(printable(line), no_wrap=True, overflow="ellipsis") for line in watched.lines())
    bar = ProgressBar(total=max(1, watched.total), completed=watched.done)
    return rich.console.Group(Text(printable(_headline(run, watched)), style="bold"), *lines, bar)


def _headline(run: Path, watched: Watched) -> str:
    if watched.totals is not None:
        return f"{run}: finished"
    owner = owner_of(run)
    return f"{run}: {owner or 'nobody trains it now; the same train command goes on'}"


def _follower(run: Path) -> RecordFollower:
    if not run.is_dir():
        raise DataError(
            f"{run} is not a folder, so there is no run to watch. Name the folder that "
            "`bas-opd train` writes to."
        )
    return RecordFollower(run / RECORDS)
