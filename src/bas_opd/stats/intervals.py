"""Means with Student-t intervals, over strata too; paired differences; and shares of a count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean of n values and half the width of its confidence interval."""

    mean: float
    half_width: float
    """Infinite for a single value."""
    n: int

    @property
    def holds_zero(self) -> bool:
        """Whether the interval contains zero: the mean is not significantly different from it."""
        return abs(self.mean) <= self.half_width


def mean_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Return the mean of independent values with its Student-t interval."""
    n = len(values)
    if n < 2:
        return Interval(mean=fmean(values), half_width=math.inf, n=n)
    quantile = t_quantile((1 + level) / 2, n - 1)
    return Interval(mean=fmean(values), half_width=quantile * stdev(values) / math.sqrt(n), n=n)


def paired_difference(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> Interval:
    """Return the mean of a - b, pair by pair: what both share cancels."""
    return mean_interval([x - y for x, y in zip(a, b, strict=True)], level)


def stratified_mean(strata: Sequence[Sequence[float]], level: float = 0.95) -> Interval:
    """Return the mean of the strata's means, in which each weighs the same, with its interval.

    It is Student's with the degrees of freedom of Welch and Satterthwaite, rounded down. If a
    stratum has a single value, its variance is unknown and so is the interval.
    """
    if len(strata) == 1:
        return mean_interval(strata[0], level)
    n = sum(map(len, strata))
    mean = fmean(map(fmean, strata))
    if min(map(len, strata)) < 2:
        return Interval(mean=mean, half_width=math.inf, n=n)
    shares = [(stdev(values) / len(strata)) ** 2 / len(values) for values in strata]
    variance = math.fsum(shares)
    if not variance:
        return Interval(mean=mean, half_width=0.0, n=n)
    spread = math.fsum(share**2 / (len(v) - 1) for share, v in zip(shares, strata, strict=True))
    freedom = math.floor(variance**2 / spread + 1e-9)  # a whole number may come out just below
    reach = t_quantile((1 + level) / 2, freedom) * math.sqrt(variance)
    return Interval(mean=mean, half_width=reach, n=n)


def wilson_interval(successes: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Return both ends of the Wilson score interval of a share; it stays between 0 and 1."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, spread = successes / n, z * z / n
    centre = share + spread / 2
    reach = math.sqrt(spread * (share * (1 - share) + spread / 4))
    return max(0.0, (centre - reach) / (1 + spread)), min(1.0, (centre + reach) / (1 + spread))


def t_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t with a whole number of degrees of freedom.

    With t = sqrt(freedom) tan(angle) the density becomes cos(angle)^(freedom - 1), whose integral
    is a finite sum; the angle is then found by bisection, to the last bit.
    """
    if not 0 < probability < 1 or freedom < 1:
        raise ValueError(
            f"Student's t has no quantile at {probability} with {freedom} degrees of freedom: the "
            "first must be between 0 and 1, the second at least 1."
        )
    inside = abs(2 * probability - 1) * _cosine_integral(freedom - 1, math.pi / 2)
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        if _cosine_integral(freedom - 1, middle) < inside:
            low = middle
        else:
            high = middle
    return math.copysign(math.sqrt(freedom) * math.tan(low), probability - 0.5)


def _cosine_integral(power: int, angle: float) -> float:
    """Integrate cos(x)^power from 0 to an angle, by its recurrence in the power."""
    sine, cosine = math.sin(angle), math.cos(angle)
    integral = sine if power % 2 else angle
    for n in range(2 + power % 2, power + 1, 2):
        integral = cosine ** (n - 1) * sine / n + (n - 1) / n * integral
    return integral
