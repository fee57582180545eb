"""What the records of a run say so far, for someone who looks on while it trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from bas_opd.run.console import LEDGER, SHARES, observed_utility, shown_total, step_line
from bas_opd.text import duration

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 60
"""Steps that a curve shows."""
PACE = 10
"""Steps that the time left is judged by."""
SUMMED = ("candidate_tokens", "calls", "scored_tokens")


@dataclass(slots=True, kw_only=True)
class Watched:
    """A run as far as its records were read."""

    policy: str = ""
    query_ratio: str = ""
    total: int = 0
    done: int = 0
    resumed: int = 0
    skipped: int = 0
    overrun: int = 0
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("candidates", *SUMMED), 0)
    )
    seconds: dict[str, float] = field(default_factory=dict)
    recent: list[dict[str, Any]] = field(default_factory=list)
    """The last steps."""
    totals: Mapping[str, Any] | None = None
    """The ledger, once the run has finished."""

    def add(self, event: Mapping[str, Any]) -> None:
        """Take in one event of the records."""
        if event["event"] in ("started", "resumed"):
            self.total = event["steps"]
            self.policy = event["config"]["select"]["policy"]
            self.query_ratio = str(event["config"]["select"]["query_ratio"])
            self.resumed += event["event"] == "resumed"
        elif event["event"] == "finished":
            self.totals = event["totals"]
        elif event["event"] == "step":
            self._step(event)

    def _step(self, event: Mapping[str, Any]) -> None:
        self.done = event["step"] + 1
        self.skipped += bool(event["selected"]) and not event["is_valid"]
        self.overrun = max(self.overrun, event["overrun"])
        self.counts["candidates"] += len(event["candidates"])
        for name in SUMMED:
            self.counts[name] += event[name]
        for phase, spent in event["seconds"].items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + spent
        self.recent = [*self.recent, dict(event)][-WIDTH:]

    @property
    def remaining(self) -> float:
        """Seconds of the steps to come, at the pace of the last ones."""
        spent = [sum(event["seconds"].values()) for event in self.recent[-PACE:]]
        return fmean(spent) * max(0, self.total - self.done) if spent else 0.0

    def line(self, event: Mapping[str, Any]) -> str:
        """Return the line of one step as training prints it."""
        return step_line(
            event,
            place=f"{event['step'] + 1}/{self.total}",
            seconds=sum(event["seconds"].values()),
            remaining=self.remaining,
        )

    def lines(self) -> tuple[str, ...]:
        """Return what there is to see of the run, a few lines of plain text."""
        if not self.recent:
            return ("No step is on record yet.",)
        ledger = "  ".join(f"{LEDGER[name]} {shown_total(name, self.counts)}" for name in SHARES)
        lines = [
            f"{self.policy}, query ratio {self.query_ratio}",
            self.line(self.recent[-1]),
            f"{ledger}  over budget, worst step {self.overrun}",
            _curve("loss", [event["loss"] for event in self.recent]),
        ]
        utilities = [observed_utility(event) for event in self.recent]
        if any(ranked is not None for ranked, _ in utilities):
            lines.append(_curve("utility, ranked", [ranked for ranked, _ in utilities]))
            lines.append(_curve("utility, explored", [explored for _, explored in utilities]))
        spent = sum(self.seconds.values())
        if spent:
            shares = (f"{phase} {s / spent:.0%}" for phase, s in self.seconds.items() if s)
            lines.append(f"time {duration(spent)}: {', '.join(shares)}")
        if self.skipped:
            lines.append(f"steps skipped, not finite: {self.skipped:,}")
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
