"""The charts of the report: small drawings that scale with the page and take its colours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from bas_opd.report.drawing import (
    TEXT_WIDTH,
    Canvas,
    Scale,
    reaching,
    short_number,
)

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
    intervals: Sequence[tuple[float, float]] = ()
    """Of each point, where they are known."""
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
    ys += [end for each in series for interval in each.intervals for end in interval]
    low, high = x_ends or (min(xs), max(xs))
    bottom, top = y_ends or reaching(ys, zero=zero)
    canvas = Canvas(width=WIDTH, height=HEIGHT, label=label)
    x = Scale(low=low, high=high, start=LEFT + 6, end=WIDTH - RIGHT - 6)
    y = Scale(low=bottom, high=top, start=HEIGHT - BOTTOM, end=TOP)
    _axes(canvas, x, y, x_name=x_name, y_name=y_name, x_tick=x_tick, y_tick=y_tick)
    for each in series:
        places = [(x(a), y(b)) for a, b in each.points]
        for (place, _), (below, above) in zip(places, each.intervals, strict=False):
            canvas.whisker(place, y(below), y(above), each.style)
        if each.has_line and len(places) > 1:
            canvas.path(places, f"line {each.style}")
        if each.has_marks:
            for number, (a, b) in enumerate(places):
                title = each.titles[number] if each.titles else ""
                canvas.mark(a, b, each.style, title=title, size=2.4 if len(places) > 40 else 3.2)
                if numbered:
                    canvas.add("text", title, x=a + 7, y=b - 5, class_="value")
    return Chart(svg=canvas.svg(), keys=tuple(_key(each) for each in series if each.label))


def calls_chart(calls: Sequence[int], budgets: Sequence[int], *, label: str) -> Chart:
    """Draw the calls of every step as a column, and its budget as the line they must not cross."""
    canvas = Canvas(width=WIDTH, height=HEIGHT, label=label)
    x = Scale(low=0, high=len(calls), start=LEFT, end=WIDTH - RIGHT)
    low, high = reaching([*calls, *budgets])
    y = Scale(low=low, high=high * 1.04, start=HEIGHT - BOTTOM, end=TOP)
    _axes(
        canvas,
        Scale(low=0.5, high=len(calls) + 0.5, start=LEFT, end=WIDTH - RIGHT),
        y,
        x_name="step",
        y_name="teacher calls",
        whole=True,
    )
    gap = 0.15 if len(calls) < 60 else 0.05
    edge = []
    for number, (made, allowed) in enumerate(zip(calls, budgets, strict=True)):
        left, right = x(number + gap), x(number + 1 - gap)
        style = "bar ranked" if made <= allowed else "bar over"
        canvas.add(
            "rect",
            x=left,
            y=y(made),
            width=right - left,
            height=y(0) - y(made),
            class_=style,
            title=f"step {number + 1}: {made:,} of {allowed:,}",
        )
        edge += [(x(number), y(allowed)), (x(number + 1), y(allowed))]
    canvas.path(edge, "line edge")
    return Chart(
        svg=canvas.svg(),
        keys=(
            Key(label="teacher calls", sample=_swatch("bar ranked")),
            Key(label="budget K", sample=line_sample("edge")),
        ),
    )


def columns(
    labels: Sequence[str],
    values: Sequence[float],
    intervals: Sequence[tuple[float, float]],
    *,
    label: str,
    x_name: str,
    y_name: str,
) -> Chart:
    """Draw one column for each label, with its interval."""
    canvas = Canvas(width=WIDTH, height=HEIGHT, label=label)
    low, high = reaching([*values, *(end for each in intervals for end in each)])
    y = Scale(low=low, high=high, start=HEIGHT - BOTTOM, end=TOP)
    _axes(canvas, None, y, x_name=x_name, y_name=y_name)
    width = (WIDTH - LEFT - RIGHT) / len(labels)
    for number, (name, value, (below, above)) in enumerate(
        zip(labels, values, intervals, strict=True)
    ):
        centre = LEFT + (number + 0.5) * width
        half = min(26, 0.3 * width)
        canvas.add(
            "rect",
            x=centre - half,
            y=min(y(value), y(0)),
            width=2 * half,
            height=abs(y(0) - y(value)),
            class_="bar ranked" if number == 0 else "bar faded",
            title=f"{name}: {value:.3g}, 95 % interval {below:.3g} to {above:.3g}",
        )
        canvas.whisker(centre, y(below), y(above), "ink")
        canvas.add("text", name, x=centre, y=HEIGHT - BOTTOM + 13, class_="tick middle")
    return Chart(svg=canvas.svg())


def shares(rows: Mapping[str, tuple[float, float]], *, label: str, names: tuple[str, str]) -> Chart:
    """Draw two bars for each row: its share of one whole, and of another."""
    line, side = 34, 104
    canvas = Canvas(width=WIDTH, height=line * len(rows) + 4, label=label)
    largest = max(max(pair) for pair in rows.values()) or 1.0
    x = Scale(low=0, high=largest, start=side, end=WIDTH - 46)
    for number, (name, pair) in enumerate(rows.items()):
        top = number * line + 4
        canvas.add("text", _fitted(name, side - 8), x=0, y=top + 17, class_="name", title=name)
        for place, (share, style) in enumerate(zip(pair, ("faded", "ranked"), strict=True)):
            y = top + 2 + 12 * place
            canvas.add("rect", x=side, y=y, width=x(share) - side, height=10, class_=f"bar {style}")
            canvas.add("text", f"{100 * share:.1f} %", x=x(share) + 5, y=y + 9, class_="tick")
    keys = tuple(
        Key(label=name, sample=_swatch(f"bar {style}"))
        for name, style in zip(names, ("faded", "ranked"), strict=True)
    )
    return Chart(svg=canvas.svg(), keys=keys)


def stacked(parts: Mapping[str, float], *, label: str) -> Chart:
    """Draw parts of a whole as one bar; the table beside it names them in the same order."""
    canvas = Canvas(width=720, height=30, label=label, is_stretched=True)
    whole = sum(parts.values()) or 1.0
    left = 0.0
    for number, (name, part) in enumerate(parts.items()):
        width = 720 * part / whole
        share = f"{name} {100 * part / whole:.1f} %"
        style = f"bar phase-{number % 6}"
        canvas.add("rect", x=left, y=0, width=width, height=30, class_=style, title=share)
        left += width
    keys = tuple(
        Key(label=name, sample=_swatch(f"bar phase-{number % 6}"))
        for number, name in enumerate(parts)
    )
    return Chart(svg=canvas.svg(), keys=keys)


def _axes(
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
    return Key(label=series.label, sample=_sample(canvas))


def line_sample(style: str) -> Markup:
    """Return a short piece of a line for a legend."""
    canvas = Canvas(width=22, height=12, label="")
    canvas.line(0, 6, 22, 6, f"line {style}")
    return _sample(canvas)


def _swatch(style: str) -> Markup:
    canvas = Canvas(width=12, height=12, label="")
    canvas.add("rect", x=0, y=1, width=12, height=10, class_=style)
    return _sample(canvas)


def _sample(canvas: Canvas) -> Markup:
    """Return a drawing that only repeats what stands beside it."""
    head = Markup('<svg viewBox="0 0 {0} {1}" width="{0}" height="{1}" aria-hidden="true">')
    return (
        head.format(canvas.width, canvas.height) + Markup("").join(canvas.parts) + Markup("</svg>")
    )


def _fitted(text: str, width: float) -> str:
    longest = int(width / TEXT_WIDTH)
    return text if len(text) <= longest else text[: longest - 1] + "…"
