"""Charts of bars: calls against budgets, means with intervals, and parts of a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from bas_opd.report.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Chart,
    Key,
    axes,
    line_sample,
    sample_of,
)
from bas_opd.report.drawing import TEXT_WIDTH, Canvas, Scale, reaching
from bas_opd.report.numerals import Ends


def calls_chart(calls: Sequence[int], budgets: Sequence[int], *, label: str) -> Chart:
    """Draw the calls of every step as a column, and its budget as the line they must not cross."""
    canvas = Canvas(width=WIDTH, height=HEIGHT, label=label)
    x = Scale(low=0, high=len(calls), start=LEFT, end=WIDTH - RIGHT)
    low, high = reaching([*calls, *budgets])
    y = Scale(low=low, high=high * 1.04, start=HEIGHT - BOTTOM, end=TOP)
    axes(
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
    intervals: Sequence[Ends | None],
    *,
    label: str,
    x_name: str,
    y_name: str,
) -> Chart:
    """Draw one column for each label, with its interval where that is known."""
    canvas = Canvas(width=WIDTH, height=HEIGHT, label=label)
    low, high = reaching([*values, *(end for each in intervals if each for end in each)])
    y = Scale(low=low, high=high, start=HEIGHT - BOTTOM, end=TOP)
    axes(canvas, None, y, x_name=x_name, y_name=y_name)
    width = (WIDTH - LEFT - RIGHT) / len(labels)
    for number, (name, value, interval) in enumerate(zip(labels, values, intervals, strict=True)):
        centre = LEFT + (number + 0.5) * width
        half = min(26, 0.3 * width)
        canvas.add(
            "rect",
            x=centre - half,
            y=min(y(value), y(0)),
            width=2 * half,
            height=abs(y(0) - y(value)),
            class_="bar ranked" if number == 0 else "bar faded",
            title=f"{name}: {value:.3g}{_interval_words(interval)}",
        )
        if interval is not None:
            canvas.whisker(centre, y(interval[0]), y(interval[1]), "ink")
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


def _interval_words(interval: Ends | None) -> str:
    return "" if interval is None else ", 95 % interval {:.3g} to {:.3g}".format(*interval)


def _swatch(style: str) -> Markup:
    canvas = Canvas(width=12, height=12, label="")
    canvas.add("rect", x=0, y=1, width=12, height=10, class_=style)
    return sample_of(canvas)


def _fitted(text: str, width: float) -> str:
    longest = int(width / TEXT_WIDTH)
    return text if len(text) <= longest else text[: longest - 1] + "…"
