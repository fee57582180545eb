"""A chart as plain data: panels, axes and shapes, in the units of what they show.

`svg` draws it; pages and printed figures show that drawing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, TypeVar

from bas_opd.text import Ends

T = TypeVar("T")
Point = tuple[float, float]
Form = Literal["line", "mark", "bar"]
LineForm = Literal["", "interval", "arrow", "faint-arrow"]
WIDTH, HEIGHT = 360, 210
"""Size of a chart, in the pixels of a page before it scales."""
TEXT_WIDTH = 5.4
"""Of a character at the size of the labels, about."""
DENSE = 40
"""Lines of more points than this have no marks."""
DRAWN = 600
"""Points or columns that a chart draws at most, more than its pixels: neighbours are taken
together."""
PARTS = 6
"""Parts beyond these repeat a colour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Values from `low` to `high`, some of which are named."""

    name: str = ""
    low: float = 0.0
    high: float = 1.0
    ticks: tuple[tuple[float, str], ...] = ()
    has_grid: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Straight lines from point to point."""

    points: tuple[Point, ...]
    style: str
    form: LineForm = ""
    """An interval is upright or level, with a short bar at both ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A point, in the shape and colour of its style."""

    at: Point
    style: str
    title: str = ""
    size: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A rectangle."""

    x: Ends
    y: Ends
    style: str
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Words at a point: above it and centred, or right of it."""

    at: Point
    words: str
    is_above: bool = False


Shape = Line | Mark | Bar | Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Shapes over two axes."""

    x: Axis
    y: Axis
    shapes: tuple[Shape, ...]
    title: str = ""
    details: tuple[str, ...] = ()
    """Lines of text in a corner."""
    has_equal_units: bool = False
    """Whether a unit is as long on both axes, so that angles are true."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One entry of a legend."""

    label: str
    style: str
    forms: tuple[Form, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One or more panels, row by row, with what their styles mean."""

    title: str
    label: str
    """Accessible label."""
    panels: tuple[Panel, ...]
    columns: tuple[float, ...] = (1,)
    """Relative widths of the columns of panels."""
    keys: tuple[Key, ...] = ()
    caption: str = ""
    width: float = WIDTH
    height: float = HEIGHT
    is_stretched: bool = False
    """Whether the drawing fills its place on a page whatever the shape of that."""


Tick = Callable[[float], str]


def short_number(value: float) -> str:
    """Write a tick: 25,000, 0.05, 2e-6."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) < 1e-3:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    return f"{value:.4g}"


def percent_tick(value: float) -> str:
    """Write a tick of a share."""
    return f"{100 * value:.3g} %"


def round_step(width: float, *, whole: bool = False) -> float:
    """Return the smallest of 1, 2, 2.5, 5 and 10 times a power of ten not below a width.

    Of what is counted in `whole` numbers, it is one of these.
    """
    width = max(width, 1.0) if whole else width
    if width <= 0:
        return 1.0
    power = 10 ** math.floor(math.log10(width))
    steps = [power * digit for digit in (1, 2, 2.5, 5, 10)]
    return next(
        step for step in steps if step >= width * (1 - 1e-9) and not (whole and step != round(step))
    )


def are_whole(values: Sequence[float]) -> bool:
    """Return whether values are counted in whole numbers."""
    return all(float(value).is_integer() for value in values)


def round_ends(values: Sequence[float], *, zero: bool = True, whole: bool = False) -> Ends:
    """Return the ends of an axis that holds all values, on round numbers."""
    low, high = min(values), max(values)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-12):
        low, high = low - (0.0 if zero else 0.5), high + (1.0 if zero else 0.5)
    step = round_step((high - low) / 4, whole=whole)
    return step * math.floor(low / step + 1e-9), step * math.ceil(high / step - 1e-9)


def axis(
    name: str,
    ends: Ends,
    *,
    tick: Tick = short_number,
    wanted: int = 5,
    grid: bool = False,
    whole: bool = False,
) -> Axis:
    """Return an axis with about so many ticks, at round values."""
    low, high = ends
    step = round_step((high - low) / wanted, whole=whole)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    values = [number * step for number in range(first, last + 1)]
    return Axis(
        name=name,
        low=low,
        high=high,
        ticks=tuple((value, tick(value)) for value in values),
        has_grid=grid,
    )


def value_axis(
    name: str, values: Sequence[float], *, zero: bool = True, tick: Tick = short_number
) -> Axis:
    """Return an axis with grid lines whose round ends hold all values."""
    whole = tick is short_number and are_whole(values)
    ends = round_ends(values, zero=zero, whole=whole)
    return axis(name, ends, tick=tick, wanted=4, grid=True, whole=whole)


def named_columns(names: Sequence[str], name: str = "") -> Axis:
    """Return an x axis of columns at 0, 1, 2, ..."""
    ticks = tuple((float(place), each) for place, each in enumerate(names))
    return Axis(name=name, low=-0.5, high=len(names) - 0.5, ticks=ticks)


def named_rows(names: Sequence[str]) -> Axis:
    """Return a y axis of rows from the top, at 0, -1, -2, ..."""
    ticks = tuple((-float(place), each) for place, each in enumerate(names))
    return Axis(low=0.5 - len(names), high=0.5, ticks=ticks)


def whisker(x: float, ends: Ends, style: str) -> Line:
    """Return an upright interval."""
    return Line(points=((x, ends[0]), (x, ends[1])), style=style, form="interval")


def line_chart(
    lines: Mapping[tuple[str, str], Sequence[Point]],
    *,
    title: str,
    label: str,
    x: Axis | str,
    y: Axis | str,
    intervals: Sequence[Ends | None] = (),
    titles: Sequence[str] = (),
    more: Sequence[Shape] = (),
    caption: str = "",
) -> Chart:
    """Return lines by label and style over two axes; an axis is given whole or by its name.

    A line without a label has no key. `intervals` and `titles` are of the points of a single line.
    """
    longest = max(map(len, lines.values()), default=0)
    if longest > DRAWN:
        lines = {key: _means(line) for key, line in lines.items()}
        size = math.ceil(longest / DRAWN)
        caption = f"{caption} Points are means of {size:,} steps.".strip()
    points = [point for line in lines.values() for point in line]
    shapes: list[Shape] = list(more)
    for (_, style), line in lines.items():
        shapes += [
            whisker(point[0], ends, style)
            for point, ends in zip(line, intervals, strict=False)
            if ends is not None
        ]
        if len(line) > 1:
            shapes.append(Line(points=tuple(line), style=style))
        if len(line) <= DENSE:
            shapes += [
                Mark(at=point, style=style, title=titles[number] if titles else "")
                for number, point in enumerate(line)
            ]
    if isinstance(x, str):
        values = [value for value, _ in points]
        x = axis(x, (min(values), max(values)), whole=are_whole(values))
    if isinstance(y, str):
        y = value_axis(
            y, [*(value for _, value in points), *(end for each in intervals for end in each or ())]
        )
    return Chart(
        title=title,
        label=label,
        panels=(Panel(x=x, y=y, shapes=tuple(shapes)),),
        keys=tuple(
            Key(label=name, style=style, forms=("line",) if len(line) > DENSE else ("line", "mark"))
            for (name, style), line in lines.items()
            if name
        ),
        caption=caption,
    )


def column_chart(
    names: Sequence[str],
    values: Sequence[float],
    intervals: Sequence[Ends | None],
    *,
    title: str,
    label: str,
    x_name: str,
    y_name: str,
    p_values: Sequence[float | None] = (),
    caption: str = "",
) -> Chart:
    """Return a column for each name with its interval, and p values between neighbours."""
    shapes: list[Shape] = []
    for place, (name, value, ends) in enumerate(zip(names, values, intervals, strict=True)):
        words = "" if ends is None else f", 95 % CI {ends[0]:.3g} to {ends[1]:.3g}"
        shapes.append(
            Bar(
                x=(place - 0.3, place + 0.3),
                y=(min(value, 0.0), max(value, 0.0)),
                style="faded" if place else "ranked",
                title=f"{name}: {value:.3g}{words}",
            )
        )
        if ends is not None:
            shapes.append(whisker(place, ends, "ink"))
    heights = [*values, *(end for each in intervals for end in each or ())]
    top = max(heights)
    for place, p in enumerate(p_values):
        if p is not None:
            height = top * (1.06 + 0.12 * (len(p_values) - 2 - place))
            shapes += [
                Line(points=((place, height), (place + 1, height)), style="bracket"),
                Text(at=(place + 0.5, height), words=f"p = {p:.2g}", is_above=True),
            ]
            heights.append(height * 1.1)
    return Chart(
        title=title,
        label=label,
        panels=(
            Panel(
                x=named_columns(names, x_name),
                y=value_axis(y_name, heights),
                shapes=tuple(shapes),
            ),
        ),
        caption=caption,
    )


def neighbours(values: Sequence[T]) -> list[Sequence[T]]:
    """Return the values in groups of neighbours, so few that a chart can draw them."""
    size = max(1, math.ceil(len(values) / DRAWN))
    return [values[at : at + size] for at in range(0, len(values), size)]


def _means(points: Sequence[Point]) -> list[Point]:
    return [
        (fmean(x for x, _ in group), fmean(y for _, y in group)) for group in neighbours(points)
    ]


def row_bars(row: int, shares: Sequence[float], styles: Sequence[str]) -> list[Shape]:
    """Return the bars of a row, one below the other, each with its share beside it."""
    high = 0.35 if len(shares) > 1 else 0.28
    thick = 2 * high / len(shares)
    shapes: list[Shape] = []
    for place, (share, style) in enumerate(zip(shares, styles, strict=True)):
        top = high - row - place * thick
        shapes += [
            Bar(x=(0.0, share), y=(top - 0.9 * thick, top), style=style),
            Text(at=(share, top - 0.45 * thick), words=f"{100 * share:.1f} %"),
        ]
    return shapes
