"""Distribution-free tests and intervals: sign flips, bootstrap, rank correlation.

The unit is the batch: rollouts of one batch share prompts and are not independent.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import correlation

import numpy

MOST_UNITS = 40
"""All 2^40 flips are counted in about a second; more would take too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value with both ends of its interval, which are infinite for a single unit."""

    value: float
    low: float
    high: float


def sign_flip_p(differences: Sequence[float]) -> float:
    """Return the one-sided p of paired differences: their sum against all 2^n flips of their signs.

    Flipping some of them leaves a sum at least as large exactly where those add up to at most 0;
    such subsets are counted from the sums of both halves. With ten batches the smallest p is
    1/1024, three times that (0.0029) once Holm-adjusted over three tests. The paper's 0.006
    (Figure 3b) is 3 * 2/1024: the smallest p of a two-sided test, or a one-sided one in which a
    single other flip reaches the sum that was observed.
    """
    if not 1 <= len(differences) <= MOST_UNITS:
        raise ValueError(f"A sign-flip test takes 1 to {MOST_UNITS} pairs, not {len(differences)}.")
    # Sums that differ by rounding alone are equal.
    tolerance = 1e-12 * math.fsum(map(abs, differences))
    half = len(differences) // 2
    left = _subset_sums(differences[:half])
    right = sorted(_subset_sums(differences[half:]))
    count = sum(bisect_right(right, tolerance - part) for part in left)
    return count / 2 ** len(differences)


def mcnemar(only_a: int, only_b: int) -> float:
    """Return the exact two-sided p-value of McNemar's test.

    If both runs are equally good, a question that one run alone has right is equally likely to be
    either's. The sums are of integers, so nothing is rounded even for thousands of questions.
    """
    n = only_a + only_b
    term, tail = 1, 0
    for k in range(min(only_a, only_b) + 1):
        tail += term
        term = term * (n - k) // (k + 1)
    return min(1.0, 2 * tail / 2**n)


def paired_p(
    strata: Sequence[tuple[int, int, int]], *, resamples: int = 100_000, seed: int = 0
) -> float:
    """Return the two-sided p of a difference of two accuracies in which strata weigh the same.

    A stratum is (questions only a has right, those only b has right, all its questions). If both
    are equally good, each question that one alone has right is either's by the toss of a coin.
    Where all strata have as many questions, all tosses weigh the same, and the test is McNemar's,
    exact; else the coins are tossed `resamples` times, so that no p is below 1 / `resamples`.
    """
    only_a, only_b, sizes = (numpy.array(column) for column in zip(*strata, strict=True))
    if len(set(sizes.tolist())) == 1:
        return mcnemar(int(only_a.sum()), int(only_b.sum()))
    differing = only_a + only_b
    heads = numpy.random.default_rng(seed).binomial(differing, 0.5, (resamples, len(strata)))
    tossed = ((2 * heads - differing) / sizes).sum(-1)
    observed = abs(((only_a - only_b) / sizes).sum())
    # Sums that differ by rounding alone are equal.
    return float((1 + (abs(tossed) >= observed - 1e-12).sum()) / (1 + resamples))


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return p values adjusted for their number by Holm's step-down procedure."""
    p = numpy.array(p_values, dtype=float)
    order = p.argsort(kind="stable")
    adjusted = numpy.empty_like(p)
    steps = numpy.arange(len(p), 0, -1) * p[order]
    adjusted[order] = numpy.maximum.accumulate(steps.clip(max=1.0))
    return tuple(adjusted.tolist())


def bootstrap_interval(
    parts: Sequence[float],
    wholes: Sequence[float] | None = None,
    *,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Estimate:
    """Return sum(parts) / sum(wholes) over units with its percentile bootstrap interval.

    Without wholes each unit counts as one, which gives the mean.
    """
    wholes = [1.0] * len(parts) if wholes is None else wholes
    value = math.fsum(parts) / math.fsum(wholes)
    if len(parts) < 2:
        return Estimate(value=value, low=-math.inf, high=math.inf)
    units = numpy.array([parts, wholes], dtype=float)
    draws = numpy.random.default_rng(seed).integers(len(parts), size=(resamples, len(parts)))
    part, whole = units[:, draws].sum(-1)
    # A resample whose wholes sum to zero has no ratio.
    ratios = part[whole > 0] / whole[whole > 0]
    low, high = numpy.quantile(ratios, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(value=value, low=float(low), high=float(high))


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the correlation of the ranks, ties at their mean rank; none if one is constant."""
    if len(set(a)) < 2 or len(set(b)) < 2:
        return None
    return correlation(_mean_ranks(a), _mean_ranks(b))


def _subset_sums(values: Sequence[float]) -> list[float]:
    sums = [0.0]
    for value in values:
        sums += [total + value for total in sums]
    return sums


def _mean_ranks(values: Sequence[float]) -> list[float]:
    _, places, ties = numpy.unique(values, return_inverse=True, return_counts=True)
    return (ties.cumsum() - (ties - 1) / 2)[places].tolist()
