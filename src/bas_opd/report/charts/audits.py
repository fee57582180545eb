"""What audits show: of utility (Figure 3) and of gradients (Figure 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bas_opd.audit.angles import Angles, aligned, summarise
from bas_opd.audit.records import CheckpointGeometry, GeometryAudit, Pair, UtilityAudit
from bas_opd.audit.summary import ANGLES, angle_cells, teacher_line, teacher_note
from bas_opd.audit.utility import CURVE, QUARTERS, Capture, Ranking, UtilityDiagnostics, diagnose
from bas_opd.errors import DataError
from bas_opd.report.charts.model import (
    Axis,
    Chart,
    Key,
    Line,
    LineForm,
    Panel,
    axis,
    column_chart,
    line_chart,
    percent_tick,
    value_axis,
)
from bas_opd.report.run import Run
from bas_opd.text import counted, ends_of, ends_text, finite_ends, percent, plus_minus

Captured = Mapping[Ranking, tuple[str, str]]
QUARTER = 0.25
RANKING_STYLES: dict[Ranking, str] = {
    "oracle": "limit",
    "covering": "third",
    "learned": "ranked",
    "entropy": "explored",
    "random": "faint",
}
GRADIENT_STYLES = {"selected": "ranked", "unselected": "explored"}
COLUMNS = 3
PANEL_HEIGHT = 165


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFigures:
    """An audit in words and charts."""

    subject: str
    source: str
    teacher: str
    """Who was asked, in a sentence."""
    note: str
    """For every figure: that the student stood in for the teacher; else empty."""
    words: str
    """The result; why nothing is drawn, if no candidate had any utility."""
    figure: tuple[Chart, ...] = ()
    """The charts of the paper's figure."""
    more: tuple[Chart, ...] = ()
    header: tuple[str, ...] = ()
    rows: Sequence[Sequence[str]] = ()
    scored: str = ""
    """How many candidates of what; this and the following are of a utility audit."""
    budget: str = ""
    captured: Captured = field(default_factory=dict)
    """Share of the utility that each ranking captures within that budget, and its interval."""
    covered: Mapping[Ranking, str] = field(default_factory=dict)
    """Share of the prompts that each ranking asks about within that budget."""
    coverage: str = ""
    """The same in a sentence, with the texts that are selected again where they are known."""


def audit_figures(run: Run) -> list[AuditFigures]:
    """Describe the audits on record, those of utility first."""
    gradients = [] if run.geometry is None else [geometry_figures(run.geometry)]
    return [*map(utility_figures, run.utility_audits), *gradients]


def utility_figures(audit: UtilityAudit) -> AuditFigures:
    """Describe a utility audit in words and charts."""
    # A run that queries everything captures everything: a quarter is shown of it.
    ratio = QUARTER if float(audit.query_ratio) == 1 else float(audit.query_ratio)
    budget = f"{100 * ratio:g} %"
    subject = f"Utility on {audit.source} batches"
    teacher, note = teacher_line(audit), teacher_note(audit)
    try:
        found = diagnose(audit)
    except DataError as error:
        return AuditFigures(
            subject=subject,
            source=audit.source,
            teacher=teacher,
            note=note,
            words=str(error),
            budget=budget,
        )
    batches = counted(found.batches, f"{audit.source} batch", f"{audit.source} batches")
    scored = (
        f"{counted(found.candidates, 'candidate')} of {batches}, all scored at step {audit.step:,}"
    )
    own = next(each for each in found.captures if float(each.ratio) == ratio)
    captured = _captured(own)
    words = f"{scored}. {_capture_words(found, budget, captured)}"
    bands, calibration = _band_chart(audit, found), _calibration_chart(audit, found)
    return AuditFigures(
        subject=subject,
        source=audit.source,
        teacher=teacher,
        note=note,
        words=words,
        figure=(_capture_chart(audit, found, words), *([bands] if bands else [])),
        more=(calibration,) if calibration else (),
        header=("kind", "rows", "mean utility", "captured"),
        rows=[
            (
                kind.kind or "no kind",
                f"{kind.n:,}",
                f"{kind.utility:.2e}",
                "-" if kind.captured is None else percent(kind.captured),
            )
            for kind in found.kinds
        ],
        scored=scored,
        budget=budget,
        captured=captured,
        covered={ranking: percent(share) for ranking, share in own.prompts.items()},
        coverage=_coverage_words(own, budget),
    )


def geometry_figures(audit: GeometryAudit) -> AuditFigures:
    """Describe a gradient audit in words and charts."""
    angles = summarise(audit)
    ratios = [each.mean_norm_ratio for each in angles]
    degrees = [each.mean_degrees for each in angles]
    return AuditFigures(
        subject="Gradients",
        source=audit.source,
        teacher=teacher_line(audit),
        note=teacher_note(audit),
        words=(
            f"At {counted(len(angles), 'checkpoint')}, "
            f"{counted(len(audit.checkpoints[0].pairs), 'batch', 'batches')} each on "
            f"{audit.source} data: the mean gradient of the selected rows is {min(ratios):.2f} to "
            f"{max(ratios):.2f} times as long as that of the others, and the angle between them "
            f"is {min(degrees):.0f} to {max(degrees):.0f} degrees."
        ),
        figure=(_arrow_chart(audit, angles),),
        more=(_cosine_chart(audit, angles),),
        header=ANGLES,
        rows=[angle_cells(each) for each in angles],
    )


def _coverage_words(own: Capture, budget: str) -> str:
    """Return how widely each ranking asks, which is not what it captures."""
    prompts = ", ".join(f"{name} {percent(share, 1, 0)}" for name, share in own.prompts.items())
    words = f"Prompts asked about at least once within {budget}: {prompts}."
    if own.repeated:
        texts = ", ".join(f"{name} {percent(share, 1, 0)}" for name, share in own.repeated.items())
        words += f" Rows whose text was already selected from the same prompt: {texts}."
    return words


def _captured(own: Capture) -> Captured:
    return {
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
            (ranking, RANKING_STYLES[ranking]): [
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


def _arrow_chart(audit: GeometryAudit, angles: Sequence[Angles]) -> Chart:
    ends = [
        end
        for checkpoint in audit.checkpoints
        for pair in (checkpoint.mean, *checkpoint.pairs)
        for end in aligned(pair)
    ]
    # All panels have the same axes, so that lengths can be compared between them.
    x = Axis(
        low=min(0.0, *(x for x, _ in ends)) - 0.05,
        high=max(x for x, _ in ends) + 0.05,
        ticks=((0.0, "0"), (1.0, "1")),
    )
    y = Axis(low=-0.05, high=1.1 * max(0.1, *(y for _, y in ends)))
    columns = min(COLUMNS, len(angles))
    return Chart(
        title="Mean gradients, aligned",
        label="The mean gradient of the selected rows along the horizontal and that of the others "
        "at its angle above it, at each checkpoint; faint lines are single batches. "
        f"{teacher_line(audit)}",
        panels=tuple(
            Panel(
                x=x,
                y=y,
                shapes=_arrows(checkpoint),
                title=f"step {each.step:,}",
                details=(
                    f"ratio {plus_minus(each.norm_ratio)}",
                    f"cosine {plus_minus(each.cosine, '.3f')}",
                ),
                has_equal_units=True,
            )
            for checkpoint, each in zip(audit.checkpoints, angles, strict=True)
        ),
        columns=(1,) * columns,
        keys=tuple(
            Key(label=name, style=style, forms=("line",)) for name, style in GRADIENT_STYLES.items()
        ),
        caption="Aligned: each gradient of selected rows has length 1; faint lines are single "
        f"batches. {teacher_note(audit)}".strip(),
        height=PANEL_HEIGHT * -(-len(angles) // columns),
    )


def _arrows(checkpoint: CheckpointGeometry) -> tuple[Line, ...]:
    """Return the mean gradients, and faintly those of each batch behind them."""
    pairs: list[tuple[Pair, LineForm]] = [
        *((pair, "faint-arrow") for pair in checkpoint.pairs),
        (checkpoint.mean, "arrow"),
    ]
    return tuple(
        Line(points=((0.0, 0.0), tip), style=style, form=form)
        for pair, form in pairs
        for style, tip in zip(GRADIENT_STYLES.values(), aligned(pair), strict=True)
    )


def _cosine_chart(audit: GeometryAudit, angles: Sequence[Angles]) -> Chart:
    return line_chart(
        {("", "ranked"): [(float(each.step), each.cosine.mean) for each in angles]},
        title="Cosine between them",
        label="Cosine between the gradients of selected and unselected rows at each checkpoint. "
        f"{teacher_line(audit)}",
        x="step",
        y="cosine, mean over batches",
        intervals=[ends_of(each.cosine) for each in angles],
        caption=teacher_note(audit),
    )
