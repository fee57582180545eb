"""Audits as text, and as plain data for programs. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bas_opd.audit.angles import Angles, summarise
from bas_opd.audit.records import GeometryAudit, Provenance, UtilityAudit
from bas_opd.audit.utility import Prediction, Ranking, UtilityDiagnostics, diagnose
from bas_opd.stats.intervals import Interval
from bas_opd.stats.resampling import Estimate

RANKINGS: tuple[Ranking, ...] = ("oracle", "learned", "entropy", "random")
STAND_IN = (
    "Teacher: the student itself, on the crop, in place of the run's own; the paper did the same."
)


def utility_text(audit: UtilityAudit) -> str:
    """Return capture, rank bands and correlation of a utility audit."""
    found = diagnose(audit)
    head = (
        f"Utility on {audit.source} batches, after step {audit.step} ({audit.policy}, budget "
        f"{audit.query_ratio}): {found.candidates:,} candidates from {found.batches} batches"
    )
    dropped = f", {audit.dropped} without a finite utility left out" if audit.dropped else ""
    return "\n".join(
        [
            f"{head}{dropped}.",
            teacher_line(audit),
            f"Mean utility {_utility(found.utility)}.",
            "",
            "Share of the utility captured, %, with 95 % bootstrap intervals over batches:",
            *_columns(_captures(found, audit.query_ratio)),
            "",
            *_prediction(found.prediction),
        ]
    )


def geometry_text(audit: GeometryAudit) -> str:
    """Return length ratios and angles of a gradient audit."""
    header = ["step", "batches", "norm ratio", "cosine", "ratio of means", "cosine", "angle"]
    return "\n".join(
        [
            f"Gradients of the selected against the other rows ({audit.policy}, budget "
            f"{audit.query_ratio}), with 95 % intervals over batches:",
            teacher_line(audit),
            *_columns([header, *map(_angles, summarise(audit))]),
        ]
    )


def teacher_line(audit: Provenance) -> str:
    """Say who was asked; a stand-in is named wherever results are shown."""
    return f"Teacher: the run's own ({audit.teacher_mode})." if audit.teacher == "own" else STAND_IN


def utility_data(audit: UtilityAudit) -> dict[str, Any]:
    """Return an audit without its candidates, and what follows from them."""
    return {
        **audit.model_dump(exclude={"candidates"}),
        "diagnostics": _finite(asdict(diagnose(audit))),
    }


def geometry_data(audit: GeometryAudit) -> dict[str, Any]:
    """Return an audit without its pairs, and what follows from them."""
    return {
        **audit.model_dump(exclude={"checkpoints"}),
        "checkpoints": _finite([asdict(each) for each in summarise(audit)]),
    }


def _captures(found: UtilityDiagnostics, own: str) -> Iterator[list[str]]:
    shown: list[Ranking] = [ranking for ranking in RANKINGS if ranking in found.curve]
    yield ["budget", *shown]
    for capture in found.captures:
        mark = " (the run's)" if float(capture.ratio) == float(own) else ""
        yield [
            f"{100 * float(capture.ratio):g} %{mark}",
            *(_percent(capture.shares[ranking]) for ranking in shown),
        ]


def _prediction(found: Prediction | None) -> Iterator[str]:
    if found is None:
        yield "No predictions: the policy has none, or had learnt nothing yet."
        return
    if found.bands is None:
        yield "No rank bands: a batch has fewer than four candidates."
    else:
        yield "Mean utility by quarter of the predicted rank; p of being worth more than the next,"
        yield "one-sided, from all sign flips of the batches, Holm-adjusted:"
        yield from _columns(
            [
                f"quarter {place}",
                _utility(band.utility),
                "" if band.p_above_next is None else f"p {band.p_above_next:.4f}",
            ]
            for place, band in enumerate(found.bands, start=1)
        )
    within, pooled = found.correlation.within, found.correlation.pooled
    yield (
        "Spearman's correlation of predicted with observed utility: "
        f"{'none' if within is None else _interval(within)} within batches, "
        f"{'none' if pooled is None else f'{pooled:.3f}'} over all."
    )


def _angles(angles: Angles) -> list[str]:
    return [
        f"{angles.step}",
        f"{angles.cosine.n}",
        _interval(angles.norm_ratio),
        _interval(angles.cosine),
        f"{angles.mean_norm_ratio:.3f}",
        f"{angles.mean_cosine:.3f}",
        f"{angles.mean_degrees:.1f} deg",
    ]


def _columns(rows: Iterator[list[str]] | Sequence[list[str]]) -> Iterator[str]:
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  " + "  ".join(map(str.ljust, row, widths)).rstrip()


def _percent(share: Estimate) -> str:
    return _estimate(share, lambda value: f"{100 * value:.1f}")


def _utility(mean: Estimate) -> str:
    return _estimate(mean, lambda value: f"{value:.2e}")


def _estimate(estimate: Estimate, shown: Callable[[float], str]) -> str:
    if math.isinf(estimate.high):
        return shown(estimate.value)
    return f"{shown(estimate.value)} ({shown(estimate.low)} to {shown(estimate.high)})"


def _interval(interval: Interval) -> str:
    spread = "" if math.isinf(interval.half_width) else f" ± {interval.half_width:.3f}"
    return f"{interval.mean:.3f}{spread}"


def _finite(value: Any) -> Any:
    """Return the same with none for the interval of a single value, which JSON cannot hold."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
