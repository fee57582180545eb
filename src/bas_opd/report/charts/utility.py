"""The charts of a utility audit (Figure 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bas_opd.audit.records import UtilityAudit
from bas_opd.audit.summary import teacher_line, teacher_note
from bas_opd.audit.utility import CURVE, QUARTERS, Ranking, UtilityDiagnostics, diagnose
from bas_opd.errors import DataError
from bas_opd.report.charts.model import (
    Chart,
    Line,
    axis,
    column_chart,
    line_chart,
    percent_tick,
    value_axis,
)
from bas_opd.text import counted, ends_text, finite_ends, percent, plus_minus

Captured = Mapping[Ranking, tuple[str, str]]
QUARTER = 0.25
LOOKS: dict[Ranking, str] = {
    "oracle": "limit",
    "learned": "ranked",
    "entropy": "explored",
    "random": "faint",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilityFigures:
    """What a utility audit shows."""

    source: str
    teacher: str
    """Who was asked, in a sentence."""
    note: str
    """For every figure: that the student stood in for the teacher; else empty."""
    words: str
    """The result; why nothing is drawn, if no candidate had any utility."""
    scored: str = ""
    """How many candidates of what."""
    budget: str = ""
    captured: Captured = field(default_factory=dict)
    """Share of the utility that each ranking captures within that budget, and its interval."""
    capture: Chart | None = None
    bands: Chart | None = None
    calibration: Chart | None = None
    kinds: tuple[tuple[str, str, str, str], ...] = ()
    """Kind, rows, mean utility, share captured."""


def utility_figures(audit: UtilityAudit) -> UtilityFigures:
    """Describe a utility audit in words and charts."""
    teacher, note = teacher_line(audit), teacher_note(audit)
    try:
        found = diagnose(audit)
    except DataError as error:
        return UtilityFigures(source=audit.source, teacher=teacher, note=note, words=str(error))
    batches = counted(found.batches, f"{audit.source} batch", f"{audit.source} batches")
    scored = (
        f"{counted(found.candidates, 'candidate')} of {batches}, all scored at step {audit.step:,}"
    )
    budget, captured = _captured(audit, found)
    words = f"{scored}. {_capture_words(found, budget, captured)}"
    return UtilityFigures(
        source=audit.source,
        teacher=teacher,
        note=note,
        words=words,
        scored=scored,
        budget=budget,
        captured=captured,
        capture=_capture_chart(audit, found, words),
        bands=_band_chart(audit, found),
        calibration=_calibration_chart(audit, found),
        kinds=tuple(
            (
                kind.kind or "no kind",
                f"{kind.n:,}",
                f"{kind.utility:.2e}",
                "-" if kind.captured is None else percent(kind.captured),
            )
            for kind in found.kinds
        ),
    )


def _captured(audit: UtilityAudit, found: UtilityDiagnostics) -> tuple[str, Captured]:
    # A run that queries everything captures everything: a quarter is shown of it.
    ratio = QUARTER if float(audit.query_ratio) == 1 else float(audit.query_ratio)
    own = next(each for each in found.captures if float(each.ratio) == ratio)
    return f"{100 * ratio:g} %", {
        ranking: (
            percent(share.value),
            # The share that random selection captures is known without any sample.
            "" if ranking == "random" else ends_text(finite_ends(share.low, share.high)),
        )
        for ranking, share in own.shares.items()
    }


def _capture_words(found: UtilityDiagnostics, budget: str, captured: Captured) -> str:
    intervals = "95 % confidence intervals by bootstrap over batches"
    if found.batches == 1:
        intervals = "one batch gives no confidence intervals"
    parts = ", ".join(
        f"{ranking} {share}" + (f" ({interval})" if interval else "")
        for ranking, (share, interval) in captured.items()
    )
    return f"Of all their utility, a budget of {budget} captures: {parts}; {intervals}."


def _capture_chart(audit: UtilityAudit, found: UtilityDiagnostics, words: str) -> Chart:
    own = float(audit.query_ratio)
    return line_chart(
        {
            (ranking, LOOKS[ranking]): [
                (float(ratio), share) for ratio, share in zip(CURVE, shares, strict=True)
            ]
            for ranking, shares in found.curve.items()
        },
        title="Utility captured by a budget",
        label=f"Share of utility captured by each ranking as the budget grows. {words} "
        f"{teacher_line(audit)}",
        x=axis("budget, share of candidates", (0, 1), tick=percent_tick),
        y=value_axis("share of utility captured", (0, 1), tick=percent_tick),
        more=[Line(points=((own, 0.0), (own, 1.0)), style="faint")] if own < 1 else [],
        caption=teacher_note(audit),
    )


def _band_chart(audit: UtilityAudit, found: UtilityDiagnostics) -> Chart | None:
    if found.prediction is None or found.prediction.bands is None:
        return None
    bands = found.prediction.bands
    tests = "; ".join(
        f"{name} above {after}: p {band.p_above_next:.3g}"
        for name, after, band in zip(QUARTERS, QUARTERS[1:], bands, strict=False)
        if band.p_above_next is not None
    )
    means = ", ".join(f"{band.utility.value:.2e}" for band in bands)
    words = (
        f"Means from the top: {means}. One-sided sign-flip tests over batches, Holm-adjusted: "
        f"{tests}."
    )
    return column_chart(
        QUARTERS,
        [band.utility.value for band in bands],
        [finite_ends(band.utility.low, band.utility.high) for band in bands],
        title="Mean utility by predicted rank",
        label=f"Mean utility by predicted rank. {words} {teacher_line(audit)}",
        x_name="predicted rank within its batch",
        y_name="mean utility",
        p_values=[band.p_above_next for band in bands],
        caption=f"{words} {teacher_note(audit)}".strip(),
    )


def _calibration_chart(audit: UtilityAudit, found: UtilityDiagnostics) -> Chart | None:
    if found.prediction is None or len(found.prediction.calibration) < 2:
        return None
    bins = found.prediction.calibration
    within = found.prediction.correlation.within
    words = "Predicted and observed utility have no rank correlation: one of them is constant."
    if within is not None:
        words = f"Spearman's correlation within batches: {plus_minus(within)}."
    return line_chart(
        {("", "ranked"): [(each.predicted, each.observed) for each in bins]},
        title="Predicted against observed utility",
        label=f"Observed against predicted utility, in tenths. {words} {teacher_line(audit)}",
        x="predicted utility",
        y="observed utility",
        titles=[f"{each.n:,} candidates" for each in bins],
        caption=f"{words} {teacher_note(audit)}".strip(),
    )
