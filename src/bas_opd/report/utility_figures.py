"""The figures of a utility audit, drawn from its record (Figure 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bas_opd.audit.records import UtilityAudit
from bas_opd.audit.utility import CURVE, Ranking, UtilityDiagnostics, diagnose
from bas_opd.errors import DataError
from bas_opd.report.bars import columns
from bas_opd.report.charts import Chart, Series, plot
from bas_opd.report.drawing import percent_tick
from bas_opd.report.findings import StandIn, stand_in
from bas_opd.report.numerals import Ends, counted, known, percent, plus_minus
from bas_opd.report.selection import BANDS

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
    stand_in: StandIn
    words: str
    """What it comes to; why nothing is drawn, if no candidate had any utility."""
    scored: str = ""
    """How many candidates of what."""
    budget: str = ""
    captured: Captured = field(default_factory=dict)
    """Share of the utility that each ranking captures within that budget, and its interval."""
    capture: Chart | None = None
    bands: Chart | None = None
    band_words: str = ""
    calibration: Chart | None = None
    calibration_words: str = ""
    kinds: tuple[tuple[str, str, str, str], ...] = ()
    """Kind, rows, mean utility, share captured."""


def utility_figures(audit: UtilityAudit) -> UtilityFigures:
    """Draw a utility audit."""
    try:
        found = diagnose(audit)
    except DataError as error:
        return UtilityFigures(source=audit.source, stand_in=stand_in(audit), words=str(error))
    scored = _scored_words(audit, found)
    budget, captured = _captured(audit, found)
    words = _capture_words(found, scored, budget, captured)
    return UtilityFigures(
        source=audit.source,
        stand_in=stand_in(audit),
        words=words,
        scored=scored,
        budget=budget,
        captured=captured,
        capture=_capture_chart(found, f"{words} {stand_in(audit).sentence}"),
        bands=_band_chart(audit, found),
        band_words=_band_words(found),
        calibration=_calibration_chart(audit, found),
        calibration_words=_correlation_words(found),
        kinds=tuple(
            (
                kind.kind or "no kind",
                f"{kind.n:,}",
                f"{kind.utility:.2e}",
                "-" if kind.captured is None else f"{100 * kind.captured:.1f} %",
            )
            for kind in found.kinds
        ),
    )


def _scored_words(audit: UtilityAudit, found: UtilityDiagnostics) -> str:
    batches = counted(found.batches, f"{audit.source} batch", f"{audit.source} batches")
    return (
        f"{counted(found.candidates, 'candidate')} of {batches}, all scored at step {audit.step:,}"
    )


def _captured(audit: UtilityAudit, found: UtilityDiagnostics) -> tuple[str, Captured]:
    # Whoever asks about everything captures everything: of such a run, a quarter is shown.
    ratio = QUARTER if float(audit.query_ratio) == 1 else float(audit.query_ratio)
    own = next(each for each in found.captures if float(each.ratio) == ratio)
    return f"{100 * ratio:g} %", {
        ranking: (
            percent(share.value, 1),
            # What is captured at random is known without any sample.
            "" if ranking == "random" else _in_percent(known(share.low, share.high)),
        )
        for ranking, share in own.shares.items()
    }


def _capture_words(found: UtilityDiagnostics, scored: str, budget: str, captured: Captured) -> str:
    intervals = "95 % intervals by bootstrap over batches"
    if found.batches == 1:
        intervals = "one batch gives no intervals"
    parts = ", ".join(
        f"{ranking} {share}" + (f" ({interval})" if interval else "")
        for ranking, (share, interval) in captured.items()
    )
    return f"{scored}. Of all their utility, a budget of {budget} captures: {parts}; {intervals}."


def _in_percent(ends: Ends | None) -> str:
    return "" if ends is None else f"{100 * ends[0]:.1f} to {100 * ends[1]:.1f}"


def _capture_chart(found: UtilityDiagnostics, words: str) -> Chart:
    ratios = [float(ratio) for ratio in CURVE]
    series = [
        Series(
            label=ranking,
            style=LOOKS[ranking],
            points=list(zip(ratios, shares, strict=True)),
            has_marks=False,
        )
        for ranking, shares in found.curve.items()
    ]
    return plot(
        series,
        label=f"Share of utility captured by each ranking as the budget grows. {words}",
        x_name="budget, share of candidates",
        y_name="share of utility captured",
        x_ends=(0, 1),
        y_ends=(0, 1),
        x_tick=percent_tick,
        y_tick=percent_tick,
    )


def _band_chart(audit: UtilityAudit, found: UtilityDiagnostics) -> Chart | None:
    if found.prediction is None or found.prediction.bands is None:
        return None
    bands = [band.utility for band in found.prediction.bands]
    return columns(
        BANDS,
        [band.value for band in bands],
        [known(band.low, band.high) for band in bands],
        label=f"Mean utility by predicted rank. {_band_words(found)} {stand_in(audit).sentence}",
        x_name="predicted rank within its batch",
        y_name="mean utility",
    )


def _band_words(found: UtilityDiagnostics) -> str:
    if found.prediction is None or found.prediction.bands is None:
        return ""
    bands = found.prediction.bands
    tests = [
        f"{name} above {after}: p {band.p_above_next:.3g}"
        for name, after, band in zip(BANDS, BANDS[1:], bands, strict=False)
        if band.p_above_next is not None
    ]
    means = ", ".join(f"{band.utility.value:.2e}" for band in bands)
    return (
        f"Means from the top: {means}. One-sided sign-flip tests over batches, Holm-adjusted: "
        f"{'; '.join(tests)}."
    )


def _calibration_chart(audit: UtilityAudit, found: UtilityDiagnostics) -> Chart | None:
    if found.prediction is None or len(found.prediction.calibration) < 2:
        return None
    bins = found.prediction.calibration
    return plot(
        [
            Series(
                label="",
                style="ranked",
                points=[(each.predicted, each.observed) for each in bins],
                titles=[f"{each.n:,} candidates" for each in bins],
            )
        ],
        label=f"Observed against predicted utility, in tenths. {_correlation_words(found)} "
        f"{stand_in(audit).sentence}",
        x_name="predicted utility",
        y_name="observed utility",
    )


def _correlation_words(found: UtilityDiagnostics) -> str:
    if found.prediction is None:
        return ""
    within = found.prediction.correlation.within
    if within is None:
        return "Predicted and observed utility have no rank correlation: one of them is constant."
    return f"Spearman's correlation within batches: {plus_minus(within)}."
