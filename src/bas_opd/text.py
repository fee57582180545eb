"""Text for people: numbers, intervals, durations, tables, and characters safe on a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bas_opd.stats.intervals import Interval

Ends = tuple[float, float]
"""Both ends of a confidence interval."""


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose columns but the first hold numbers; cells are taken as they are."""
    lines = [header, ["---", *["--:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows with the first column to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join((row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:]))).rstrip()
        for row in rows
    )


def duration(seconds: float) -> str:
    """A time as a person says it: 0.4 s, 41 s, 50 m, 3 h 05 m."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} m" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} m"


def clock(seconds: float) -> str:
    """A duration, to the second up to ten minutes."""
    return f"{seconds:,.0f} s" if 10 <= seconds < 600 else duration(seconds)


def percent(part: float, whole: float = 1.0, digits: int = 1) -> str:
    """A share in percent, or a dash where there is nothing to divide by."""
    return f"{100 * part / whole:.{digits}f} %" if whole else "-"


def counted(n: int, noun: str, plural: str = "") -> str:
    """A number of things: 1 batch, 2,240 candidates."""
    return f"{n:,} {noun if n == 1 else plural or f'{noun}s'}"


def listed(words: Sequence[str]) -> str:
    """Several things in a sentence: a, b and c."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def finite_ends(low: float, high: float) -> Ends | None:
    """Both ends of an interval; none unless both are finite, as with a single value."""
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


def ends_of(interval: Interval) -> Ends | None:
    """Both ends of the interval of a mean, if they are known."""
    return finite_ends(interval.mean - interval.half_width, interval.mean + interval.half_width)


def plus_minus(interval: Interval, shape: str = ".2f", scale: float = 1.0) -> str:
    """A mean ± half the width of its interval; a width of zero or unknown is left out."""
    mean = f"{scale * interval.mean:{shape}}"
    if interval.half_width == 0 or not math.isfinite(interval.half_width):
        return mean
    return f"{mean} ± {scale * interval.half_width:{shape.replace('+', '')}}"


def ends_text(ends: Ends | None, shape: str = ".1f", scale: float = 100.0) -> str:
    """An interval: 3.1 to 4.2; nothing if it is unknown. Shares are in percent unless scaled."""
    return "" if ends is None else " to ".join(f"{scale * end:{shape}}" for end in ends)


def points(difference: Interval) -> tuple[str, str]:
    """A difference of accuracies in points, and its interval."""
    return f"{100 * difference.mean:+.1f}", ends_text(ends_of(difference), "+.1f") or "unknown"


def printable(text: str) -> str:
    """The text with every character that could steer a terminal spelt out as an escape."""
    return "".join(
        character
        if character.isprintable() or character == "\n"
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )
