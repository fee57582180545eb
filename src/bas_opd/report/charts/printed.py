"""The print form of charts: SVG and PDF by matplotlib, which is imported when a figure is drawn."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bas_opd.errors import ConfigError
from bas_opd.report.charts.model import Bar, Chart, Key, Line, Mark, Panel, Shape, Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, SOFT, LINE = "#23262b", "#6b7077", "#d9d7d0"
BLUE, ORANGE, VIOLET, FADED = "#2f6690", "#a15c00", "#6a4c93", "#b9c6d1"
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "text.color": INK,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "svg.hashsalt": "bas-opd",
    "pdf.fonttype": 42,
}
RED = "#a3322b"
PARTS = (BLUE, "#7d8790", "#d19328", "#81a88d", VIOLET, RED)
COLOURS = {
    "ranked": BLUE,
    "every": BLUE,
    "explored": ORANGE,
    "best": ORANGE,
    "third": VIOLET,
    "faded": FADED,
    "over": RED,
    **dict.fromkeys(("plain", "limit", "edge", "ink"), INK),
    **dict.fromkeys(("faint", "bracket", "passed-over", "no-crop"), SOFT),
    **{f"part-{number}": colour for number, colour in enumerate(PARTS)},
}
"""Of each style; the style sheet of the pages has the same ones."""
DASHES = {"explored": "--", "limit": "--", "third": ":", "faint": ":"}
MARKERS = {"explored": "D", "best": "D", "third": "s", "plain": "s", "no-crop": "_"}
INCH = 95.0
"""Pixels of a page to an inch."""
PAGE_WIDTH = 7.4
"""Inches; several panels are at least as wide as this."""
LETTERS = 19.5
"""Of a note, to an inch."""
TALLER = 1.4
"""Print has larger text than a page, so a chart needs more height."""
NO_DATE = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""The same records give the same bytes."""


def printed(charts: Sequence[Chart], *, note: str) -> Figure:
    """Draw one chart, or several side by side, with a note below on what they show."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise ConfigError(
            "Figures are drawn with matplotlib, which is not installed. Install it with "
            "`pip install 'bas-opd[figures]'`."
        ) from error
    with mpl.rc_context(STYLE):
        return _figure(charts, note)


def save(figure: Figure, path: Path) -> tuple[Path, ...]:
    """Write a figure as PATH.svg and PATH.pdf, and return both."""
    import matplotlib as mpl

    path.parent.mkdir(parents=True, exist_ok=True)
    files = tuple(path.with_name(f"{path.name}.{kind}") for kind in NO_DATE)
    with mpl.rc_context(STYLE):
        for file, metadata in zip(files, NO_DATE.values(), strict=True):
            figure.savefig(file, metadata=metadata)
    return files


def _figure(charts: Sequence[Chart], note: str) -> Figure:
    from matplotlib.figure import Figure

    panels = [
        (f"({letter}) {chart.title}" if len(charts) > 1 else panel.title, panel)
        for letter, chart in zip("abcdef", charts, strict=False)
        for panel in chart.panels
    ]
    widths = [
        chart.width * share / sum(chart.columns) for chart in charts for share in chart.columns
    ]
    width = max(sum(widths) / INCH, 0.0 if len(panels) == 1 else PAGE_WIDTH)
    height = max(chart.height for chart in charts) * TALLER / INCH
    figure = Figure(figsize=(width, height), layout="constrained")
    rows = -(-len(panels) // len(widths))
    grid = figure.subplots(rows, len(widths), squeeze=False, width_ratios=widths)
    axes = [each for row in grid for each in row]
    for each, (title, panel) in zip(axes, panels, strict=False):
        _draw(each, panel, title)
    for each in axes[len(panels) :]:
        each.set_axis_off()
    keys = [key for chart in charts for key in chart.keys]
    if keys:
        figure.legend(
            handles=[_handle(key) for key in keys],
            loc="outside upper left",
            ncols=min(len(keys), 6),
        )
    text = textwrap.fill(note, int(width * LETTERS))
    figure.supxlabel(text, fontsize=7, color=SOFT, x=0.01, ha="left")
    return figure


def _draw(axes: Axes, panel: Panel, title: str) -> None:
    axes.set_title(title)
    axes.set(
        xlim=(panel.x.low, panel.x.high),
        ylim=(panel.y.low, panel.y.high),
        xlabel=panel.x.name,
        ylabel=panel.y.name,
    )
    axes.set_xticks([value for value, _ in panel.x.ticks], [name for _, name in panel.x.ticks])
    axes.set_yticks([value for value, _ in panel.y.ticks], [name for _, name in panel.y.ticks])
    axes.grid(visible=panel.x.has_grid, axis="x")
    axes.grid(visible=panel.y.has_grid, axis="y")
    if panel.has_equal_units:
        axes.set_aspect("equal", adjustable="box")
    if panel.details:
        place: dict[str, Any] = {
            "transform": axes.transAxes,
            "va": "top",
            "fontsize": 7,
            "color": SOFT,
        }
        axes.text(1.02, 1, "\n".join(panel.details), **place)
    for shape in panel.shapes:
        _shape(axes, shape)


def _shape(axes: Axes, shape: Shape) -> None:
    colour = INK if isinstance(shape, Text) else COLOURS[shape.style]
    match shape:
        case Text(at=(x, y)):
            across, up = ("center", "bottom") if shape.is_above else ("left", "center")
            offset = (0, 1) if shape.is_above else (3, 0)
            axes.annotate(
                shape.words,
                (x, y),
                offset,
                textcoords="offset points",
                ha=across,
                va=up,
                fontsize=7.5,
            )
        case Line(has_head=True):
            _arrow(axes, shape)
        case Line(is_interval=True, points=((x, _), (end, _))):
            marker = "_" if x == end else "|"
            axes.plot(*_columns(shape), color=colour, marker=marker, linewidth=1, markersize=5)
        case Line():
            dash = DASHES.get(shape.style, "-")
            axes.plot(*_columns(shape), color=colour, linestyle=dash, linewidth=1.4)
        case Mark(at=(x, y)):
            marker = MARKERS.get(shape.style, "o")
            axes.plot(x, y, marker, color=colour, markersize=4.5 * shape.size, zorder=3)
        case Bar(x=(left, right), y=(low, high)):
            axes.bar(left, high - low, right - left, low, align="edge", color=colour)


def _columns(line: Line) -> tuple[list[float], list[float]]:
    return [x for x, _ in line.points], [y for _, y in line.points]


def _arrow(axes: Axes, line: Line) -> None:
    width = 0.7 if line.is_faint else 2.2
    axes.annotate(
        "",
        xy=line.points[-1],
        xytext=line.points[0],
        arrowprops={
            "arrowstyle": "-|>",
            "color": COLOURS[line.style],
            "alpha": 0.18 if line.is_faint else 1,
            "linewidth": width,
            "shrinkA": 0,
            "shrinkB": 0,
            "mutation_scale": 4 + 3 * width,
        },
    )


def _handle(key: Key) -> Any:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    colour = COLOURS[key.style]
    if "bar" in key.forms:
        return Patch(color=colour, label=key.label)
    line = DASHES.get(key.style, "-") if "line" in key.forms else ""
    marker = MARKERS.get(key.style, "o") if "mark" in key.forms else ""
    look: dict[str, Any] = {"linestyle": line, "marker": marker, "markersize": 4.5}
    return Line2D([], [], color=colour, label=key.label, **look)
