"""A comparison of runs as plain text, for terminals and mails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from bas_opd.evaluate.results import BenchmarkResult
from bas_opd.report.arms import ArmRuns
from bas_opd.report.comparison import RunComparison, findings, run_table
from bas_opd.stats.intervals import Interval
from bas_opd.text import aligned, ends_of, plus_minus


def comparison_text(comparison: RunComparison) -> str:
    """Return the table of runs, their differences, and what limits the comparison."""
    parts = [aligned(run_table(comparison))]
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
                "processed_tokens": entry.run.totals["processed_tokens"],
                "share_of_full_processed_tokens": entry.processed_share,
                "sampled_tokens": entry.run.totals["sampled_tokens"],
                "total_tokens": entry.run.totals["total_tokens"],
                "share_of_full_total_tokens": entry.total_share,
                "seconds": entry.run.seconds,
                "accuracy": None if entry.accuracy is None else asdict(entry.accuracy),
                "base": None if entry.before is None else asdict(entry.before),
                "beside": None if entry.beside is None else asdict(entry.beside),
                "evaluation_is_of_other_weights": entry.run.evaluation is not None
                and entry.run.own_evaluation is None,
                "benchmarks": []
                if entry.run.evaluation is None
                else [_benchmark(each) for each in entry.run.evaluation.results],
            }
            for entry in comparison.entries
        ],
        "pairs": [
            {
                "benchmark": pair.benchmark,
                "a": pair.a.label,
                "b": pair.b.label,
                "metric": pair.comparison.metric,
                "only_a": pair.comparison.only_a,
                "only_b": pair.comparison.only_b,
                **_interval("difference", pair.comparison.difference),
                "p": pair.comparison.p_value,
                "adjusted_p": pair.adjusted_p,
                "is_shown": pair.is_significant,
            }
            for pair in comparison.pairs
        ],
        "seeds": [
            {
                "policy": group.name,
                "runs": [entry.label for entry in group.members],
                "metric": group.metric,
                **({} if group.accuracy is None else _interval("accuracy", group.accuracy)),
            }
            for group in comparison.groups
        ],
        "over_seeds": [
            {
                "a": each.a,
                "b": each.b,
                "metric": each.metric,
                **_interval("difference", each.difference),
            }
            for each in comparison.contrasts
        ],
        "notes": list(comparison.notes),
    }


def _benchmark(result: BenchmarkResult) -> dict[str, Any]:
    return {
        **asdict(result.summary),
        "fingerprint": result.fingerprint,
        "is_partial": result.is_partial,
        "judge": result.judge,
    }


def _interval(name: str, value: Interval) -> dict[str, Any]:
    """Name a mean and its half width; none where it is unknown, for JSON has no infinity."""
    half_width = None if ends_of(value) is None else value.half_width
    return {name: value.mean, "half_width": half_width, "n": value.n}


def _groups(groups: Sequence[ArmRuns]) -> Iterator[str]:
    for group in groups:
        accuracy = "not all evaluated on the same questions"
        if group.accuracy is not None:
            accuracy = f"{plus_minus(group.accuracy, '.1f', 100)} % ({group.metric})"
        scored, processed, total = group.tokens
        teacher = f"{scored} scored tokens, {processed} processed, {total} in total"
        cost = teacher if group.first.has_queries else f"{total} total tokens"
        yield f"{group.name} over {len(group.members)} seeds: {accuracy}, {cost}."
