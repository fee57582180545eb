"""What the records of a run say so far, while it trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from bas_opd.run.console import shown_shares, step_line
from bas_opd.run.ledger import Ledger
from bas_opd.run.record import QueryRecord, StepRecord, parse_step
from bas_opd.text import duration

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 60
"""Steps that a curve shows."""
PACE = 10
"""Steps that the time left is judged by."""


@dataclass(slots=True, kw_only=True)
class Watched:
    """A run as far as its records were read."""

    policy: str = ""
    query_ratio: str = ""
    total: int = 0
    done: int = 0
    resumed: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    recent: list[StepRecord] = field(default_factory=list)
    """The last steps."""
    totals: Mapping[str, Any] | None = None
    """The ledger, once the run has finished."""

    def add(self, event: Mapping[str, Any]) -> StepRecord | None:
        """Take in one event of the records; return it if it is a step."""
        if event["event"] in ("started", "resumed"):
            self.total = event["steps"]
            self.policy = event["config"]["select"]["policy"]
            self.query_ratio = str(event["config"]["select"]["query_ratio"])
            self.resumed += event["event"] == "resumed"
        elif event["event"] == "finished":
            self.totals = event["totals"]
        elif event["event"] == "step":
            step = parse_step(event)
            self.done = step.step + 1
            self.ledger.charge(step)
            self.recent = [*self.recent, step][-WIDTH:]
            return step
        return None

    @property
    def remaining(self) -> float:
        """Seconds of the steps to come, at the pace of the last ones."""
        spent = [sum(step.seconds.values()) for step in self.recent[-PACE:]]
        return fmean(spent) * max(0, self.total - self.done) if spent else 0.0

    def line(self, step: StepRecord) -> str:
        """Return the line of one step as training prints it."""
        return step_line(
            step,
            place=f"{step.step + 1}/{self.total}",
            seconds=sum(step.seconds.values()),
            remaining=self.remaining,
        )

    def lines(self) -> tuple[str, ...]:
        """Return what there is to see of the run, a few lines of plain text."""
        if not self.recent:
            return ("No step is on record yet.",)
        ledger = self.ledger
        lines = [
            f"{self.policy}, query ratio {self.query_ratio}",
            self.line(self.recent[-1]),
            f"{shown_shares(ledger.totals())}  over budget, worst step {ledger.overrun}",
            _curve("loss", [step.loss for step in self.recent]),
        ]
        utilities = [step.mean_utility for step in self.recent if isinstance(step, QueryRecord)]
        if any(ranked is not None for ranked, _ in utilities):
            lines.append(_curve("utility, ranked", [ranked for ranked, _ in utilities]))
            lines.append(_curve("utility, explored", [explored for _, explored in utilities]))
        spent = sum(ledger.seconds.values())
        if spent:
            shares = (f"{phase} {s / spent:.0%}" for phase, s in ledger.seconds.items() if s)
            lines.append(f"time {duration(spent)}: {', '.join(shares)}")
        if ledger.skipped_steps:
            lines.append(f"steps skipped, not finite: {ledger.skipped_steps:,}")
        if self.resumed:
            lines.append(f"times resumed: {self.resumed:,}")
        return tuple(lines)


def _curve(label: str, values: Sequence[float | None]) -> str:
    """Draw numbers as a row of bars between their least and their greatest."""
    known = [value for value in values if value is not None]
    if not known:
        return f"{label:<18}not known"
    low, high = min(known), max(known)
    reach = (high - low) or 1.0
    bars = "".join(
        " " if value is None else BARS[round((value - low) / reach * (len(BARS) - 1))]
        for value in values
    )
    return f"{label:<18}{bars}  {known[-1]:.3g} ({low:.3g} to {high:.3g})"
