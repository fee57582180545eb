"""The gradients of selected and unselected rows along a run (Figure 4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bas_opd.audit.angles import Angles, Arrows, Picture, picture, summarise
from bas_opd.audit.records import GeometryAudit
from bas_opd.report.figures.canvas import BLUE, ORANGE, SOFT, note, panels, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 3


@styled
def gradient_geometry(audit: GeometryAudit) -> Figure:
    """Draw a panel for each checkpoint: both mean gradients, and faintly those of each batch."""
    pictures = [picture(checkpoint) for checkpoint in audit.checkpoints]
    angles = summarise(audit)
    columns = min(COLUMNS, len(pictures))
    rows = math.ceil(len(pictures) / columns)
    figure, axes = panels(rows, columns, width=2.7 * columns, height=2.35 * rows + 0.35)
    for panel, drawn, measured in zip(axes, pictures, angles, strict=False):
        _draw(panel, drawn, measured)
        _limit(panel, pictures)
    for panel in axes[len(pictures) :]:
        panel.set_axis_off()
    pairs = len(audit.checkpoints[0].pairs)
    teacher = "" if audit.teacher == "own" else "  The frozen student IN PLACE OF the teacher."
    note(
        figure,
        f"Orange: mean gradient of the selected rows; blue: of the others; faint: {pairs} batches. "
        f"Aligned: each selected gradient has length 1.{teacher}",
    )
    return figure


def _draw(panel: Axes, drawn: Picture, measured: Angles) -> None:
    for pair in drawn.pairs:
        _arrows(panel, pair, alpha=0.18, width=0.7)
    _arrows(panel, drawn.mean, alpha=1, width=2.2)
    panel.set_title(f"step {measured.step}")
    panel.text(
        0.98,
        0.97,
        f"ratio {measured.norm_ratio.mean:.2f} ± {_half(measured.norm_ratio.half_width)}\n"
        f"cosine {measured.cosine.mean:.3f} ± {_half(measured.cosine.half_width)}",
        transform=panel.transAxes,
        ha="right",
        va="top",
        fontsize=7,
        color=SOFT,
    )
    panel.tick_params(labelsize=7)


def _limit(panel: Axes, pictures: Sequence[Picture]) -> None:
    """Give all panels the same frame, so that lengths can be compared between them."""
    ends = [
        end
        for each in pictures
        for arrows in (each.mean, *each.pairs)
        for end in (arrows.selected, arrows.unselected)
    ]
    panel.set_xlim(min(0.0, *(x for x, _ in ends)) - 0.05, max(x for x, _ in ends) + 0.05)
    panel.set_ylim(-0.05, 1.25 * max(y for _, y in ends))
    panel.set_aspect("equal", adjustable="box")


def _arrows(panel: Axes, arrows: Arrows, *, alpha: float, width: float) -> None:
    for end, colour in ((arrows.selected, ORANGE), (arrows.unselected, BLUE)):
        panel.annotate(
            "",
            xy=end,
            xytext=(0, 0),
            arrowprops={
                "arrowstyle": "-|>",
                "color": colour,
                "alpha": alpha,
                "linewidth": width,
                "shrinkA": 0,
                "shrinkB": 0,
                "mutation_scale": 4 + 3 * width,
            },
        )


def _half(width: float) -> str:
    return f"{width:.2g}" if math.isfinite(width) else "unknown"
