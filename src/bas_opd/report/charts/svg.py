"""A chart as SVG: it takes its colours from a style sheet, and every text in it is escaped."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from bas_opd.report.charts.model import (
    TEXT_WIDTH,
    Axis,
    Bar,
    Chart,
    Key,
    Line,
    Mark,
    Panel,
    Point,
    Shape,
    Text,
)
from bas_opd.text import printable

Scale = Callable[[float], float]
LINE_HEIGHT = 13
LEFT, SHAPES = 44, 100
"""Least room for the names on a y axis, and for the shapes beside it; longer names are cut."""
TOP, BOTTOM, EDGE = 24, 34, 10


def svg(chart: Chart) -> Markup:
    """Return a chart as one element, with its accessible label."""
    head = Markup(
        '<svg class="{}" viewBox="0 0 {} {}" preserveAspectRatio="{}" role="img" aria-label="{}">'
    ).format(
        "chart stretched" if chart.is_stretched else "chart",
        _number(chart.width),
        _number(chart.height),
        "none" if chart.is_stretched else "xMidYMid",
        printable(chart.label),
    )
    return head + panels(chart) + Markup("</svg>")


def panels(chart: Chart) -> Markup:
    """Return the panels of a chart, without an element around them."""
    rows = -(-len(chart.panels) // len(chart.columns))
    height = chart.height / rows
    starts = [chart.width * sum(chart.columns[:place]) for place in range(len(chart.columns) + 1)]
    parts = []
    for number, panel in enumerate(chart.panels):
        row, column = divmod(number, len(chart.columns))
        left, right = (starts[place] / sum(chart.columns) for place in (column, column + 1))
        parts.append(_panel(panel, _Box(left, row * height, right, (row + 1) * height)))
    return Markup("").join(parts)


def sample(key: Key) -> Markup:
    """Return a small drawing of how an entry of a legend looks, as one element."""
    head = Markup('<svg viewBox="0 0 {0} 12" width="{0}" height="12" aria-hidden="true">')
    return head.format(sample_width(key)) + sample_shapes(key) + Markup("</svg>")


def sample_width(key: Key) -> int:
    """Return the width of that drawing."""
    return 12 if key.forms == ("bar",) else 22


def sample_shapes(key: Key) -> Markup:
    """Return that drawing without an element around it."""
    shapes = {
        "line": _line(((0, 6), (22, 6)), f"line {key.style}"),
        "mark": _mark((11, 6), key.style),
        "bar": element("rect", x=0, y=1, width=12, height=10, class_=f"bar {key.style}"),
    }
    return Markup("").join(shapes[form] for form in key.forms)


def element(tag: str, text: str = "", *, title: str = "", **attributes: float | str) -> Markup:
    """Return an SVG element; `class_` becomes class, and `_` a hyphen."""
    written = Markup("").join(
        Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"), _number(value))
        for name, value in attributes.items()
    )
    inner = Markup("{}").format(printable(text))
    if title:
        inner += Markup("<title>{}</title>").format(printable(title))
    # The name of the element is ours; whatever else came from a run was escaped above.
    return Markup(f"<{tag}{written}>{inner}</{tag}>")


@dataclass(frozen=True, slots=True)
class _Box:
    """A part of the drawing; y grows downwards."""

    left: float
    top: float
    right: float
    bottom: float


def _scale(axis: Axis, start: float, end: float) -> Scale:
    """Return where the values of an axis are in the drawing."""
    width = axis.high - axis.low
    unit = (end - start) / width if width > 0 else 0.0
    return lambda value: start + (value - axis.low) * unit if unit else (start + end) / 2


def _panel(panel: Panel, box: _Box) -> Markup:
    inner = _inside(panel, box)
    x = _scale(panel.x, inner.left, inner.right)
    y = _scale(panel.y, inner.bottom, inner.top)
    parts = _axes(panel, x, y, inner, box)
    words = (panel.title, *panel.details) if panel.title else panel.details
    parts += [
        element("text", line, x=box.left, y=box.top + 11 + LINE_HEIGHT * number, class_=style)
        for number, line in enumerate(words)
        for style in ["name" if line == panel.title else "tick"]
    ]
    parts += [_shape(shape, x, y) for shape in panel.shapes]
    return Markup("").join(parts)


def _inside(panel: Panel, box: _Box) -> _Box:
    """Return the part of a box that is left for shapes."""
    has_axes = bool(panel.x.ticks or panel.y.ticks)
    widest = max((len(name) for _, name in panel.y.ticks), default=0) * TEXT_WIDTH
    left = EDGE * has_axes
    if panel.y.ticks:
        left = min(max(LEFT, widest + 8), box.right - box.left - SHAPES)
    lines = bool(panel.title) + len(panel.details)
    top = LINE_HEIGHT * lines + 6 if lines else TOP if panel.y.name else 4 * has_axes
    bottom = 0 if not panel.x.ticks else BOTTOM if panel.x.name else BOTTOM / 2
    inner = _Box(box.left + left, box.top + top, box.right - EDGE * has_axes, box.bottom - bottom)
    if not panel.has_equal_units:
        return inner
    width, height = panel.x.high - panel.x.low, panel.y.high - panel.y.low
    unit = min((inner.right - inner.left) / width, (inner.bottom - inner.top) / height)
    spare = (inner.right - inner.left - unit * width) / 2
    return _Box(inner.left + spare, inner.bottom - unit * height, inner.right - spare, inner.bottom)


def _axes(panel: Panel, x: Scale, y: Scale, inner: _Box, box: _Box) -> list[Markup]:
    parts = []
    for value, name in panel.y.ticks:
        if panel.y.has_grid:
            parts.append(_line(((inner.left, y(value)), (inner.right, y(value))), "grid"))
        shown = _fitted(name, inner.left - box.left - 8)
        title = name if shown != name else ""
        at = {"x": inner.left - 5, "y": y(value) + 3.5}
        parts.append(element("text", shown, title=title, **at, class_="tick end"))
    for value, name in panel.x.ticks:
        if panel.x.has_grid:
            parts.append(_line(((x(value), inner.top), (x(value), inner.bottom)), "grid"))
        parts.append(element("text", name, x=x(value), y=inner.bottom + 13, class_="tick middle"))
    if panel.x.ticks:
        parts.append(_line(((inner.left, inner.bottom), (inner.right, inner.bottom)), "axis"))
    if name := panel.x.name:
        parts.append(element("text", name, x=inner.right, y=box.bottom - 5, class_="axis-name end"))
    if name := panel.y.name:
        parts.append(element("text", name, x=box.left, y=box.top + 11, class_="axis-name"))
    return parts


def _shape(shape: Shape, x: Scale, y: Scale) -> Markup:
    match shape:
        case Line():
            return _drawn_line(shape, [(x(a), y(b)) for a, b in shape.points])
        case Mark(at=(a, b)):
            return _mark((x(a), y(b)), shape.style, shape.title, 3.2 * shape.size)
        case Bar(x=(left, right), y=(low, high)):
            return element(
                "rect",
                title=shape.title,
                x=x(left),
                y=y(high),
                width=x(right) - x(left),
                height=y(low) - y(high),
                class_=f"bar {shape.style}",
            )
        case Text(at=(a, b)):
            style = "value middle" if shape.is_above else "tick"
            left, up = (0, 4) if shape.is_above else (5, -3.5)
            return element("text", shape.words, x=x(a) + left, y=y(b) - up, class_=style)


def _drawn_line(line: Line, points: list[Point]) -> Markup:
    if line.form == "interval":
        # Short bars across the ends: level for an upright line, upright for a level one.
        across, up = (3, 0) if points[0][0] == points[1][0] else (0, 3)
        bars = [((x - across, y - up), (x + across, y + up)) for x, y in points]
        return Markup("").join(_line(each, f"whisker {line.style}") for each in (points, *bars))
    drawn = _line(points, f"line {line.style} {line.form}".rstrip())
    if line.form != "arrow":
        return drawn
    (x0, y0), (x1, y1) = points[-2:]
    angle = math.atan2(y1 - y0, x1 - x0)
    corners = [(x1, y1)]
    corners += [
        (x1 - 8 * math.cos(angle + turn), y1 - 8 * math.sin(angle + turn)) for turn in (-0.4, 0.4)
    ]
    return drawn + element("polygon", points=_corners(*corners), class_=f"head {line.style}")


def _line(points: Sequence[Point], style: str) -> Markup:
    steps = (f"{_number(a)} {_number(b)}" for a, b in points)
    return element("path", d="M" + "L".join(steps), class_=style)


def _mark(at: Point, style: str, title: str = "", size: float = 3.2) -> Markup:
    """Draw a point in the shape of its style, so that styles differ not in colour alone."""
    (x, y), look = at, f"point {style}"
    if style in ("explored", "best"):
        half = size * 1.3
        corners = _corners((x, y - half), (x + half, y), (x, y + half), (x - half, y))
        return element("polygon", title=title, points=corners, class_=look)
    if style == "no-crop":
        return element("path", title=title, d=f"M{_number(x - 2)} {y:g}h4", class_=look)
    if style in ("plain", "third"):
        side = 2 * size
        return element(
            "rect", title=title, x=x - size, y=y - size, width=side, height=side, class_=look
        )
    return element("circle", title=title, cx=x, cy=y, r=size, class_=look)


def _corners(*points: Point) -> str:
    return " ".join(f"{_number(x)},{_number(y)}" for x, y in points)


def _fitted(text: str, width: float) -> str:
    longest = int(width / TEXT_WIDTH)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _number(value: float | str) -> str:
    return printable(value) if isinstance(value, str) else f"{round(value, 2):g}"
