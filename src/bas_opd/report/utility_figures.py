"""The figures of a utility audit, drawn from its record (Figure 3)."""

from __future__ import annotations

from dataclasses import dataclass

from bas_opd.audit.records import UtilityAudit
from bas_opd.audit.utility import CURVE, Ranking, UtilityDiagnostics, diagnose
from bas_opd.errors import DataError
from bas_opd.report.charts import Chart, Series, columns, plot
from bas_opd.report.drawing import percent_tick
from bas_opd.report.findings import StandIn, plus_minus, stand_in
from bas_opd.report.selection import BANDS

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
    capture: Chart
    bands: Chart | None
    band_words: str
    calibration: Chart | None
    calibration_words: str
    kinds: tuple[tuple[str, str, str, str], ...]
    """Kind, rows, mean utility, share captured."""


def utility_figures(audit: UtilityAudit) -> UtilityFigures | None:
    """Draw a utility audit; nothing if no candidate of it had any utility."""
    try:
        found = diagnose(audit)
    except DataError:
        return None
    return UtilityFigures(
        source=audit.source,
        stand_in=stand_in(audit),
        words=_capture_words(audit, found),
        capture=_capture_chart(audit, found),
        bands=_band_chart(found),
        band_words=_band_words(found),
        calibration=_calibration_chart(found),
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


def _capture_words(audit: UtilityAudit, found: UtilityDiagnostics) -> str:
    own = next(each for each in found.captures if float(each.ratio) == float(audit.query_ratio))
    parts = [
        f"{ranking} {100 * share.value:.1f} %"
        + ("" if ranking == "random" else f" ({100 * share.low:.1f} to {100 * share.high:.1f})")
        for ranking, share in own.shares.items()
    ]
    return (
        f"{found.candidates:,} candidates of {found.batches} {audit.source} batches, all scored at "
        f"step {audit.step:,}. Of all their utility, a budget of {100 * float(own.ratio):g} % "
        f"captures: {', '.join(parts)}; 95 % intervals by bootstrap over batches."
    )


def _capture_chart(audit: UtilityAudit, found: UtilityDiagnostics) -> Chart:
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
        label=f"Share of utility captured by each ranking as the budget grows. "
        f"{_capture_words(audit, found)} {stand_in(audit).sentence}",
        x_name="budget, share of candidates",
        y_name="share of utility captured",
        x_ends=(0, 1),
        y_ends=(0, 1),
        x_tick=percent_tick,
        y_tick=percent_tick,
    )


def _band_chart(found: UtilityDiagnostics) -> Chart | None:
    if found.prediction is None or found.prediction.bands is None:
        return None
    bands = [band.utility for band in found.prediction.bands]
    return columns(
        BANDS,
        [band.value for band in bands],
        [(band.low, band.high) for band in bands],
        label=f"Mean utility by predicted rank. {_band_words(found)}",
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


def _calibration_chart(found: UtilityDiagnostics) -> Chart | None:
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
        label=f"Observed against predicted utility, in tenths. {_correlation_words(found)}",
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
