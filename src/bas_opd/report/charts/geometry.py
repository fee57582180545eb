"""The charts of a gradient audit (Figure 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bas_opd.audit.angles import Angles, aligned, summarise
from bas_opd.audit.records import CheckpointGeometry, GeometryAudit
from bas_opd.audit.summary import angle_cells, teacher_line, teacher_note
from bas_opd.report.charts.model import Axis, Chart, Key, Line, Panel, line_chart
from bas_opd.text import counted, ends_of, plus_minus

COLUMNS = 3
PANEL_HEIGHT = 165
LOOKS = {"selected": "ranked", "unselected": "explored"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GeometryFigures:
    """What a gradient audit shows."""

    teacher: str
    """Who was asked, in a sentence."""
    note: str
    """For every figure: that the student stood in for the teacher; else empty."""
    words: str
    arrows: Chart
    cosine: Chart
    rows: tuple[list[str], ...]
    """Under the header `ANGLES`."""


def geometry_figures(audit: GeometryAudit) -> GeometryFigures:
    """Describe a gradient audit in words and charts."""
    angles = summarise(audit)
    ratios = [each.mean_norm_ratio for each in angles]
    degrees = [each.mean_degrees for each in angles]
    return GeometryFigures(
        teacher=teacher_line(audit),
        note=teacher_note(audit),
        words=(
            f"At {counted(len(angles), 'checkpoint')}, "
            f"{counted(len(audit.checkpoints[0].pairs), 'batch', 'batches')} each on "
            f"{audit.source} data: the mean gradient of the selected rows is {min(ratios):.2f} to "
            f"{max(ratios):.2f} times as long as that of the others, and the angle between them "
            f"is {min(degrees):.0f} to {max(degrees):.0f} degrees."
        ),
        arrows=_arrow_chart(audit, angles),
        cosine=_cosine_chart(audit, angles),
        rows=tuple(map(angle_cells, angles)),
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
        keys=tuple(Key(label=name, style=style, forms=("line",)) for name, style in LOOKS.items()),
        caption="Aligned: each gradient of selected rows has length 1; faint lines are single "
        f"batches. {teacher_note(audit)}".strip(),
        height=PANEL_HEIGHT * -(-len(angles) // columns),
    )


def _arrows(checkpoint: CheckpointGeometry) -> tuple[Line, ...]:
    """Return the mean gradients, and faintly those of each batch behind them."""
    return tuple(
        Line(points=((0.0, 0.0), tip), style=style, has_head=True, is_faint=is_faint)
        for pair, is_faint in (
            *((pair, True) for pair in checkpoint.pairs),
            (checkpoint.mean, False),
        )
        for style, tip in zip(LOOKS.values(), aligned(pair), strict=True)
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
