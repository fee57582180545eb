"""Audits as text, and as plain data for programs. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from textwrap import indent
from typing import Any

from pydantic_core import to_jsonable_python

from bas_opd.audit.angles import Angles, summarise
from bas_opd.audit.records import GeometryAudit, Provenance, UtilityAudit
from bas_opd.audit.utility import Capture, Prediction, Ranking, UtilityDiagnostics, diagnose
from bas_opd.select.rules import policy_rule
from bas_opd.stats.resampling import Estimate
from bas_opd.text import aligned, ends_text, finite_ends, plus_minus

RANKINGS: tuple[Ranking, ...] = ("oracle", "covering", "learned", "entropy", "random")
UTILITY = ".2e"
ANGLES = ("step", "batches", "norm ratio", "cosine", "ratio of means", "cosine of means", "angle")


def utility_text(audit: UtilityAudit) -> str:
    """Return capture, rank bands and correlation of a utility audit."""
    found = diagnose(audit)
    head = (
        f"Utility on {audit.source} batches, after step {audit.step} ({_policy(audit)}): "
        f"{found.candidates:,} candidates from {found.batches} batches"
    )
    dropped = f", {audit.dropped} without a finite utility left out" if audit.dropped else ""
    return "\n".join(
        [
            f"{head}{dropped}.",
            teacher_line(audit),
            f"Mean utility {_estimate(found.utility, UTILITY)}.",
            "",
            "Share of the utility captured, %, with 95 % confidence intervals by bootstrap over "
            "batches:",
            _table(_captures(found, audit.query_ratio)),
            "",
            "Prompts that a ranking asks about at least once, %:",
            _table(_shares(found, lambda capture: capture.prompts)),
            "",
            *_repeats(found),
            *_prediction(found.prediction),
        ]
    )


def geometry_text(audit: GeometryAudit) -> str:
    """Return length ratios and angles of a gradient audit."""
    return "\n".join(
        [
            f"Gradients of the selected against the other rows ({_policy(audit)}), with 95 % "
            "confidence intervals over batches:",
            teacher_line(audit),
            _table([ANGLES, *map(angle_cells, summarise(audit))]),
        ]
    )


def teacher_line(audit: Provenance) -> str:
    """Return who was asked: the run's teacher, or the student in its place."""
    if audit.teacher == "own":
        return f"Teacher: the run's own ({audit.teacher_mode})."
    return (
        "Teacher = student: the frozen student stood in for the run's teacher, as in the paper; "
        "the run's own teacher may value rollouts differently."
    )


def teacher_note(audit: Provenance) -> str:
    """Return a mark for every figure of an audit whose teacher was the student; else nothing."""
    return "" if audit.teacher == "own" else "Teacher = student."


def utility_data(audit: UtilityAudit) -> dict[str, Any]:
    """Return an audit without its candidates, and what follows from them."""
    return {
        **audit.model_dump(exclude={"candidates"}),
        "diagnostics": _plain(diagnose(audit)),
    }


def geometry_data(audit: GeometryAudit) -> dict[str, Any]:
    """Return an audit without its pairs, and what follows from them."""
    return {
        **audit.model_dump(exclude={"checkpoints"}),
        "checkpoints": _plain(summarise(audit)),
    }


def _policy(audit: Provenance) -> str:
    covering = ", covering" if audit.coverage and not policy_rule(audit.policy).covers else ""
    return f"{audit.policy}{covering}, budget {audit.query_ratio}"


def _captures(found: UtilityDiagnostics, own: str) -> Iterator[list[str]]:
    shown: list[Ranking] = [ranking for ranking in RANKINGS if ranking in found.curve]
    yield ["budget", *shown]
    for capture in found.captures:
        mark = " (the run's)" if float(capture.ratio) == float(own) else ""
        yield [
            f"{100 * float(capture.ratio):g} %{mark}",
            *(_estimate(capture.shares[ranking], ".1f", 100) for ranking in shown),
        ]


def _shares(
    found: UtilityDiagnostics, shares: Callable[[Capture], Mapping[Ranking, float]]
) -> Iterator[list[str]]:
    """Yield a row for each budget with the share of each ranking."""
    shown: list[Ranking] = [ranking for ranking in RANKINGS if ranking in found.curve]
    yield ["budget", *shown]
    for capture in found.captures:
        cells = [f"{100 * shares(capture)[ranking]:.1f}" for ranking in shown]
        yield [f"{100 * float(capture.ratio):g} %", *cells]


def _repeats(found: UtilityDiagnostics) -> Iterator[str]:
    if all(capture.repeated for capture in found.captures):
        yield "Rows whose text was already selected from the same prompt, %:"
        yield _table(_shares(found, lambda capture: capture.repeated))
        yield ""


def _prediction(found: Prediction | None) -> Iterator[str]:
    if found is None:
        yield "No predictions: the policy has none, or had not been trained yet."
        return
    if found.bands is None:
        yield "No rank bands: a batch has fewer than four candidates."
    else:
        yield "Mean utility by quarter of the predicted rank; p of being above the next,"
        yield "one-sided, from all sign flips of the batches, Holm-adjusted:"
        yield _table(
            [
                f"quarter {place}",
                _estimate(band.utility, UTILITY),
                "" if band.p_above_next is None else f"p {band.p_above_next:.4f}",
            ]
            for place, band in enumerate(found.bands, start=1)
        )
    within, pooled = found.correlation.within, found.correlation.pooled
    yield (
        "Spearman's correlation of predicted with observed utility: "
        f"{'none' if within is None else plus_minus(within, '.3f')} within batches, "
        f"{'none' if pooled is None else f'{pooled:.3f}'} over all."
    )


def angle_cells(angles: Angles) -> list[str]:
    """Return the cells under `ANGLES`: first over batches, then of the mean gradients."""
    return [
        f"{angles.step:,}",
        f"{angles.cosine.n}",
        plus_minus(angles.norm_ratio, ".3f"),
        plus_minus(angles.cosine, ".3f"),
        f"{angles.mean_norm_ratio:.3f}",
        f"{angles.mean_cosine:.3f}",
        f"{angles.mean_degrees:.1f}°",
    ]


def _table(rows: Iterable[Sequence[str]]) -> str:
    return indent(aligned(list(rows)), "  ")


def _estimate(estimate: Estimate, shape: str, scale: float = 1.0) -> str:
    interval = ends_text(finite_ends(estimate.low, estimate.high), shape, scale)
    return f"{scale * estimate.value:{shape}}" + (f" ({interval})" if interval else "")


def _plain(value: Any) -> Any:
    """Return plain data, with none for the interval of a single value, which JSON cannot hold."""
    return to_jsonable_python(value, inf_nan_mode="null")
