"""The figures of an audit of gradients, drawn from its record (Figure 4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bas_opd.audit.angles import Angles, Arrows, picture, summarise
from bas_opd.audit.records import GeometryAudit
from bas_opd.report.charts import WIDTH, Chart, Key, Series, line_sample, plot
from bas_opd.report.drawing import Canvas
from bas_opd.report.findings import StandIn, stand_in
from bas_opd.report.numerals import counted, ends_of, plus_minus

PANEL_HEIGHT = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class GeometryFigures:
    """What an audit of gradients shows."""

    stand_in: StandIn
    words: str
    arrows: Chart
    cosine: Chart
    rows: tuple[tuple[str, str, str, str, str], ...]
    """Step, norm ratio and cosine over batches, then the angle of the means and their ratio."""


def geometry_figures(audit: GeometryAudit) -> GeometryFigures:
    """Draw an audit of gradients."""
    angles = summarise(audit)
    ratios = [each.mean_norm_ratio for each in angles]
    degrees = [each.mean_degrees for each in angles]
    return GeometryFigures(
        stand_in=stand_in(audit),
        words=(
            f"At {counted(len(angles), 'checkpoint')}, "
            f"{counted(len(audit.checkpoints[0].pairs), 'batch', 'batches')} each on "
            f"{audit.source} data: the mean gradient of the selected rows is {min(ratios):.2f} to "
            f"{max(ratios):.2f} times as long as that of the others, and the two stand "
            f"{min(degrees):.0f} to {max(degrees):.0f} degrees apart."
        ),
        arrows=_arrow_chart(audit),
        cosine=_cosine_chart(audit, angles),
        rows=tuple(
            (
                f"{each.step:,}",
                plus_minus(each.norm_ratio),
                plus_minus(each.cosine),
                f"{each.mean_norm_ratio:.2f}",
                f"{each.mean_degrees:.1f}°",
            )
            for each in angles
        ),
    )


def _arrow_chart(audit: GeometryAudit) -> Chart:
    pictures = [picture(each) for each in audit.checkpoints]
    columns = min(3, len(pictures))
    width, height = WIDTH / columns, PANEL_HEIGHT
    canvas = Canvas(
        width=WIDTH,
        height=-(-len(pictures) // columns) * height,
        label="The mean gradient of the selected rows along the horizontal and that of the others "
        "at its angle above it, at each checkpoint; faint lines are single batches. "
        f"{stand_in(audit).sentence}",
    )
    ends = [
        end
        for each in pictures
        for arrows in (each.mean, *each.pairs)
        for end in (arrows.selected, arrows.unselected)
    ]
    left = min(0.0, *(x for x, _ in ends))
    right, up = max(x for x, _ in ends), max(y for _, y in ends)
    scale = min((width - 24) / (right - left), (height - 26) / up if up else math.inf)
    for number, each in enumerate(pictures):
        row, column = divmod(number, columns)
        margin = (width - scale * (right - left)) / 2
        origin = (column * width + margin - scale * left, (row + 1) * height - 18)
        for pair in each.pairs:
            _arrows(canvas, origin, scale, pair, "faint-arrow")
        _arrows(canvas, origin, scale, each.mean, "arrow")
        canvas.add(
            "text",
            f"step {each.step:,}",
            x=(column + 0.5) * width,
            y=(row + 1) * height - 4,
            class_="tick middle",
        )
    names = (("selected", "ranked"), ("unselected", "explored"))
    return Chart(
        svg=canvas.svg(),
        keys=tuple(Key(label=name, sample=line_sample(style)) for name, style in names),
    )


def _arrows(
    canvas: Canvas, origin: tuple[float, float], scale: float, arrows: Arrows, style: str
) -> None:
    x, y = origin
    for (right, up), look in ((arrows.unselected, "explored"), (arrows.selected, "ranked")):
        canvas.line(x, y, x + right * scale, y - up * scale, f"line {style} {look}")


def _cosine_chart(audit: GeometryAudit, angles: Sequence[Angles]) -> Chart:
    return plot(
        [
            Series(
                label="",
                style="ranked",
                points=[(float(each.step), each.cosine.mean) for each in angles],
                intervals=[ends_of(each.cosine) for each in angles],
            )
        ],
        label="Cosine between the gradients of selected and unselected rows at each checkpoint. "
        f"{stand_in(audit).sentence}",
        x_name="step",
        y_name="cosine, mean over batches",
    )
