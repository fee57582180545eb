"""`bas-opd watch`: the console of a run that another process trains."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bas_opd.errors import DataError
from bas_opd.run.console import Console
from bas_opd.run.directory import RunDirectory
from bas_opd.run.journal import with_repeated
from bas_opd.run.lock import owner_of
from bas_opd.run.record import EvaluationRecord, parse_step
from bas_opd.run.record_file import RecordFollower
from bas_opd.run.view import Past, RunView


def watch(run: Path, *, every: float | None) -> None:
    """Show a run until it has finished, however often it is stopped and resumed.

    Its records are read every so many seconds; without `every` they are read once.
    """
    if not run.is_dir() and (every is None or run.exists()):
        raise DataError(
            f"{run} is not a folder, so there is no run to watch. Name the folder that "
            "`bas-opd train` writes to."
        )
    RunDirectory(path=run).refuse_other()
    with Console() as console:
        follower = _Follower(run, console)
        if every is None:
            follower.read(is_shown=False)
            console.message("\n".join((follower.status, *console.view.lines())))
            return
        while not console.pipe_closed:
            follower.read()
            if follower.totals is not None:
                console.finish(follower.totals)
                console.message(f"The run in {run} has finished.")
                return
            console.status(follower.status)
            time.sleep(every)


class _Follower:
    """Passes the events of a run on to a console, each step and each evaluation once."""

    def __init__(self, run: Path, console: Console) -> None:
        self._run, self._console = run, console
        self._directory = RunDirectory(path=run)
        self._records, self._past = RecordFollower(self._directory.records), Past(self._directory)
        self._shown, self._evaluated = 0, -1
        self.totals: Mapping[str, Any] | None = None
        """The ledger, once the run has finished."""

    def read(self, *, is_shown: bool = True) -> None:
        """Take in what was added to the records."""
        for line in self._records.read():
            if line is None:
                self._console.view, self._past = RunView(), Past(self._directory)
                continue
            if (event := self._past.event(line)) is not None:
                self._add(event, is_shown=is_shown)
            self._console.view.ledger = self._past.ledger(line) or self._console.view.ledger

    def _add(self, event: Mapping[str, Any], *, is_shown: bool) -> None:
        console = self._console
        if event["event"] == "started" and is_shown:
            console.start(event["steps"])
        view = console.view
        if event["event"] in ("started", "resumed"):
            config = event.get("config") or {}
            method = config.get("method", {}).get("name", "bas-opd")
            if method != "bas-opd":
                view.title = method
            elif select := config.get("select"):
                kind = select.get("budget", "calls").replace("_", " ")
                view.title = f"{select['policy']}, query ratio {select['query_ratio']} of {kind}"
            view.total = event["steps"]
            if event["event"] == "resumed":
                view.resumed += 1
                self._shown = min(self._shown, event["step"])
                self._evaluated = min(self._evaluated, event["step"])
                if is_shown:
                    console.message(f"Resumed after step {event['step']}.")
        elif event["event"] == "finished":
            self.totals = with_repeated(event["totals"], self._directory.calls)
        elif event["event"] == "evaluation":
            evaluation = EvaluationRecord.model_validate(event)
            if is_shown and evaluation.step > self._evaluated:
                self._evaluated = evaluation.step
                console.evaluated(evaluation)
            else:
                view.add_evaluation(evaluation)
        elif event["event"] == "step":
            step = parse_step(event)
            if is_shown and step.step >= self._shown:
                self._shown = step.step + 1
                console.step(step)
            else:  # A resumed run truncates its records; steps before that were shown.
                view.add(step)

    @property
    def status(self) -> str:
        """Whether the run has finished, and otherwise which process trains it."""
        if self.totals is not None:
            return f"{self._run}: finished"
        if owner := owner_of(self._run):
            doing = "trained" if self._console.view.total else "being loaded"
            return f"{self._run}: {doing} by {owner}"
        if not self._console.view.total:
            return f"{self._run}: no run has begun here; waiting for one, Ctrl-C stops"
        return f"{self._run}: no process trains it now; rerun its train command to resume"
