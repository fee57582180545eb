"""A comparison of runs as plain text, for terminals and mails."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from bas_opd.audit.statistics import Interval
from bas_opd.evaluate.benchmarks import Measure
from bas_opd.report.comparison import Entry, RunComparison, SeedGroup, findings
from bas_opd.report.costs import percent
from bas_opd.runtime.console import duration

HEADER = ("run", "steps", "calls", "of candidates", "scored tokens", "of full", "time", "right, %")


def comparison_text(comparison: RunComparison) -> str:
    """Return the table of runs, what their differences are worth, and what stands in the way."""
    parts = [_aligned([HEADER, *(_row(entry) for entry in comparison.entries)])]
    if comparison.groups:
        parts.append("\n".join(_groups(comparison.groups)))
    if said := findings(comparison):
        parts.append("\n".join(f"- {sentence}" for sentence in said))
    parts += comparison.notes
    return "\n\n".join(parts)


def comparison_data(comparison: RunComparison) -> dict[str, Any]:
    """Return the same for a program to read."""
    return {
        "runs": [
            {
                "label": entry.label,
                "path": str(entry.run.path),
                "policy": entry.run.policy,
                "steps": entry.run.totals["steps"],
                "calls": entry.run.totals["calls"],
                "candidates": entry.run.totals["candidates"],
                "scored_tokens": entry.run.totals["scored_tokens"],
                "share_of_full_tokens": entry.token_share,
                "seconds": entry.run.seconds,
                "accuracy": None if entry.accuracy is None else asdict(entry.accuracy),
            }
            for entry in comparison.entries
        ],
        "pairs": [
            {
                "benchmark": pair.benchmark,
                "a": pair.a,
                "b": pair.b,
                "n": pair.comparison.n,
                "only_a": pair.comparison.only_a,
                "only_b": pair.comparison.only_b,
                "difference": pair.comparison.difference.mean,
                "half_width": pair.comparison.difference.half_width,
                "p": pair.comparison.p_value,
                "adjusted_p": pair.adjusted_p,
                "is_shown": pair.is_shown,
            }
            for pair in comparison.pairs
        ],
        "notes": list(comparison.notes),
    }


def _row(entry: Entry) -> tuple[str, ...]:
    run, sums = entry.run, entry.run.totals
    share = entry.token_share
    return (
        entry.label,
        f"{sums['steps']:,}",
        f"{sums['calls']:,}",
        percent(sums["calls"], sums["candidates"]),
        f"{sums['scored_tokens']:,}",
        "-" if share is None else f"{100 * share:.1f} %",
        duration(run.seconds),
        _accuracy(entry.accuracy),
    )


def _accuracy(measure: Measure | None) -> str:
    if measure is None or measure.value is None:
        return "-"
    if measure.interval is None:
        return f"{100 * measure.value:.1f}"
    low, high = measure.interval
    return f"{100 * measure.value:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def _groups(groups: Sequence[SeedGroup]) -> Iterator[str]:
    for group in groups:
        accuracy = "not all evaluated on the same questions"
        if group.accuracy is not None:
            accuracy = f"{_spread(group.accuracy, 100)} % right"
        yield (
            f"{group.policy} over {len(group.labels)} seeds: {accuracy}, "
            f"{_spread(group.scored_tokens)} scored tokens."
        )


def _spread(value: Interval, scale: float = 1.0) -> str:
    shape = "{:,.1f}" if scale != 1 else "{:,.0f}"
    text = shape.format(scale * value.mean)
    if not math.isfinite(value.half_width):
        return text
    return f"{text} ± {shape.format(scale * value.half_width)}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join((row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:]))) for row in rows
    )
