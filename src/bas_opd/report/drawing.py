"""Scales, axes and shapes: what inline SVG needs, with every text escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from bas_opd.text import printable

TEXT_WIDTH = 5.4
"""Of a character at the size of the labels, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Values from `low` to `high` laid out between two places of the drawing."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self, wanted: int = 4) -> list[float]:
        """Return round values within the scale, about so many."""
        step = round_step((self.high - self.low) / wanted)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def round_step(width: float) -> float:
    """Return the smallest of 1, 2, 2.5, 5 and 10 times a power of ten not below a width."""
    if width <= 0:
        return 1.0
    power = 10 ** math.floor(math.log10(width))
    return next(
        power * digit for digit in (1, 2, 2.5, 5, 10) if power * digit >= width * (1 - 1e-9)
    )


def reaching(values: Sequence[float], *, zero: bool = True) -> tuple[float, float]:
    """Return the ends of a scale that holds all values, on round numbers."""
    low, high = min(values), max(values)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-12):
        low, high = low - (0.0 if zero else 0.5), high + (1.0 if zero else 0.5)
    step = round_step((high - low) / 4)
    return step * math.floor(low / step + 1e-9), step * math.ceil(high / step - 1e-9)


@dataclass(slots=True, kw_only=True)
class Canvas:
    """An SVG element under construction."""

    width: float
    height: float
    label: str
    """What a reader hears who does not see it."""
    is_stretched: bool = False
    """Whether the drawing fills its place whatever the shape of that."""
    parts: list[Markup] = field(default_factory=list)

    def add(self, tag: str, text: str = "", *, title: str = "", **attributes: float | str) -> None:
        """Append an element; `class_` becomes class, and `_` a hyphen."""
        written = Markup("").join(
            Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"), _number(value))
            for name, value in attributes.items()
        )
        inner = Markup("{}").format(printable(text))
        if title:
            inner += Markup("<title>{}</title>").format(printable(title))
        # The name of the element is ours; whatever else came from a run was escaped above.
        self.parts.append(Markup(f"<{tag}{written}>{inner}</{tag}>"))

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=style)

    def path(self, points: Sequence[tuple[float, float]], style: str) -> None:
        """Draw straight lines from point to point."""
        steps = (f"{_number(x)} {_number(y)}" for x, y in points)
        self.add("path", d="M" + "L".join(steps), class_=style)

    def mark(self, x: float, y: float, style: str, *, title: str = "", size: float = 3.2) -> None:
        """Draw a point in the shape of its style: colour is never all that tells two apart."""
        if style in ("explored", "second"):
            half = size * 1.3
            corners = f"{x},{y - half} {x + half},{y} {x},{y + half} {x - half},{y}"
            self.add("polygon", points=corners, class_=f"point {style}", title=title)
        elif style in ("plain", "third"):
            self.add(
                "rect",
                x=x - size,
                y=y - size,
                width=2 * size,
                height=2 * size,
                class_=f"point {style}",
                title=title,
            )
        else:
            self.add("circle", cx=x, cy=y, r=size, class_=f"point {style}", title=title)

    def whisker(self, x: float, low: float, high: float, style: str) -> None:
        """Draw an interval as an upright line with ends."""
        self.line(x, low, x, high, f"whisker {style}")
        for y in (low, high):
            self.line(x - 3, y, x + 3, y, f"whisker {style}")

    def svg(self) -> Markup:
        """Return the finished element."""
        head = Markup(
            '<svg class="{}" viewBox="0 0 {} {}" preserveAspectRatio="{}" role="img" '
            'aria-label="{}">'
        ).format(
            "chart stretched" if self.is_stretched else "chart",
            _number(self.width),
            _number(self.height),
            "none" if self.is_stretched else "xMidYMid",
            printable(self.label),
        )
        return head + Markup("").join(self.parts) + Markup("</svg>")


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


def _number(value: float | str) -> str:
    return printable(value) if isinstance(value, str) else f"{round(value, 2):g}"
