"""Charts of points and lines: small drawings that scale with the page and take its colours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from bas_opd.report.drawing import Canvas, Scale, reaching, short_number
from bas_opd.report.numerals import Ends

WIDTH, HEIGHT = 360, 210
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 24, 34
Tick = Callable[[float], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One entry of a legend, with a sample of its look."""

    label: str
    sample: Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawing and what its looks mean."""

    svg: Markup
    keys: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points that belong together, in order of x."""

    label: str
    style: str
    """One of the looks of the style sheet: ranked, explored, plain, limit, faint, ..."""
    points: Sequence[tuple[float, float]]
    intervals: Sequence[Ends | None] = ()
    """Of each point, where it is known."""
    has_line: bool = True
    has_marks: bool = True
    titles: Sequence[str] = ()


def plot(
    series: Sequence[Series],
    *,
    label: str,
    x_name: str,
    y_name: str,
    x_ends: tuple[float, float] | None = None,
    y_ends: tuple[float, float] | None = None,
    x_tick: Tick = short_number,
    y_tick: Tick = short_number,
    zero: bool = True,
    numbered: bool = False,
) -> Chart:
    """Draw lines, points or both over two axes; `numbered` writes its number beside each point."""
    xs = [x for each in series for x, _ in each.points]
    ys = [y for each in series for _, y in each.points]
    ys += [end for each in series for interval in each.intervals if interval for end in interval]
    low, high = x_ends or (min(xs), max(xs))
    bottom, top = y_ends or reaching(ys, zero=zero)
    canvas = Canvas(width=WIDTH, height=HEIGHT, label=label)
    x = Scale(low=low, high=high, start=LEFT + 6, end=WIDTH - RIGHT - 6)
    y = Scale(low=bottom, high=top, start=HEIGHT - BOTTOM, end=TOP)
    axes(canvas, x, y, x_name=x_name, y_name=y_name, x_tick=x_tick, y_tick=y_tick)
    for each in series:
        places = [(x(a), y(b)) for a, b in each.points]
        for (place, _), interval in zip(places, each.intervals, strict=False):
            if interval is not None:
                canvas.whisker(place, y(interval[0]), y(interval[1]), each.style)
        if each.has_line and len(places) > 1:
            canvas.path(places, f"line {each.style}")
        if each.has_marks:
            for number, (a, b) in enumerate(places):
                title = each.titles[number] if each.titles else ""
                canvas.mark(a, b, each.style, title=title, size=2.4 if len(places) > 40 else 3.2)
                if numbered:
                    canvas.add("text", title, x=a + 7, y=b - 5, class_="value")
    return Chart(svg=canvas.svg(), keys=tuple(_key(each) for each in series if each.label))


def axes(
    canvas: Canvas,
    x: Scale | None,
    y: Scale,
    *,
    x_name: str,
    y_name: str,
    x_tick: Tick = short_number,
    y_tick: Tick = short_number,
    whole: bool = False,
) -> None:
    """Draw both axes with ticks and names; without `x`, columns have names of their own."""
    for value in y.ticks():
        canvas.line(LEFT, y(value), canvas.width - RIGHT, y(value), "grid")
        canvas.add("text", y_tick(value), x=LEFT - 5, y=y(value) + 3.5, class_="tick end")
    if x is not None:
        values = [value for value in x.ticks(5) if not whole or value == int(value)]
        for value in values:
            canvas.add(
                "text", x_tick(value), x=x(value), y=HEIGHT - BOTTOM + 13, class_="tick middle"
            )
    canvas.line(LEFT, HEIGHT - BOTTOM, canvas.width - RIGHT, HEIGHT - BOTTOM, "axis")
    canvas.add("text", x_name, x=canvas.width - RIGHT, y=HEIGHT - 5, class_="axis-name end")
    canvas.add("text", y_name, x=0, y=11, class_="axis-name")


def _key(series: Series) -> Key:
    canvas = Canvas(width=22, height=12, label="")
    if series.has_line:
        canvas.line(0, 6, 22, 6, f"line {series.style}")
    if series.has_marks:
        canvas.mark(11, 6, series.style)
    return Key(label=series.label, sample=sample_of(canvas))


def line_sample(style: str) -> Markup:
    """Return a short piece of a line for a legend."""
    canvas = Canvas(width=22, height=12, label="")
    canvas.line(0, 6, 22, 6, f"line {style}")
    return sample_of(canvas)


def sample_of(canvas: Canvas) -> Markup:
    """Return a drawing that only repeats what stands beside it."""
    head = Markup('<svg viewBox="0 0 {0} {1}" width="{0}" height="{1}" aria-hidden="true">')
    return (
        head.format(canvas.width, canvas.height) + Markup("").join(canvas.parts) + Markup("</svg>")
    )
