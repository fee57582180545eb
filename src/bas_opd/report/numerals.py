"""How numbers are written wherever a report shows them."""

from __future__ import annotations

import math

from bas_opd.evaluate.benchmarks import Measure
from bas_opd.stats.intervals import Interval
from bas_opd.text import duration

Ends = tuple[float, float]


def percent(part: float, whole: float, digits: int = 1) -> str:
    """Write a share, or a dash where there is nothing to divide by."""
    return f"{100 * part / whole:.{digits}f} %" if whole else "-"


def counted(n: int, noun: str, plural: str = "") -> str:
    """Write how many of something: 1 batch, 2,240 candidates."""
    return f"{n:,} {noun if n == 1 else plural or f'{noun}s'}"


def clock(seconds: float) -> str:
    """Write a time, to the second where it is short."""
    return f"{seconds:,.0f} s" if 10 <= seconds < 600 else duration(seconds)


def known(low: float, high: float) -> Ends | None:
    """Return both ends of an interval; none where it is not finite, as of a single value."""
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


def ends_of(interval: Interval) -> Ends | None:
    """Return both ends of a mean's interval, if they are known."""
    return known(interval.mean - interval.half_width, interval.mean + interval.half_width)


def value_text(measure: Measure | None, digits: int = 1) -> str:
    """Write a measure, or a dash."""
    return "-" if measure is None or measure.value is None else percent(measure.value, 1, digits)


def ends_text(measure: Measure | None) -> str:
    """Write the interval of a measure, or a dash."""
    if measure is None or measure.interval is None:
        return "-"
    low, high = measure.interval
    return f"{100 * low:.1f} to {100 * high:.1f}"


def accuracy_text(measure: Measure) -> str:
    """Write an accuracy with its interval."""
    if measure.value is None:
        return "no accuracy that is known"
    interval = "" if measure.interval is None else f" (95 % interval {ends_text(measure)})"
    return f"{value_text(measure)}{interval}"


def plus_minus(interval: Interval, shape: str = ".2f", scale: float = 1.0) -> str:
    """Write a mean with how far its interval reaches, if that is known."""
    mean = f"{scale * interval.mean:{shape}}"
    if not math.isfinite(interval.half_width):
        return mean
    return f"{mean} ± {scale * interval.half_width:{shape}}"


def points(difference: Interval) -> tuple[str, str]:
    """Write a difference of accuracies in points, and its interval."""
    ends = ends_of(difference)
    interval = "unknown" if ends is None else f"{100 * ends[0]:+.1f} to {100 * ends[1]:+.1f}"
    return f"{100 * difference.mean:+.1f}", interval
