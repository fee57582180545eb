"""Intervals over seeds and questions together, and how many seeds a comparison needs.

Every seed answers the same questions, so the two are crossed. A value of seed s on question q is

    d[s, q] = mean + seed[s] + question[q] + rest[s, q]

and the estimate is the mean over seeds of the weighted mean over questions. Its variance has three
parts: that of seeds, over their number S; that of questions; that of the rest, over S. The variance
of the seeds' means, over S, holds the first and the third. The variance over questions of the means
over seeds holds the second and the third. So the two are added, and the rest, which both hold, is
subtracted once.

Questions of one picture or one pair are not independent: they are summed first, and the sums are
what varies. In a mean of kinds each kind weighs the same, so a question weighs 1 / (kinds x
questions of its kind), and deviations are from the mean of its kind.

`tests/unit/stats/test_crossed.py` measures how often the interval holds the true mean.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from bas_opd.stats.intervals import Interval, t_quantile

Values = NDArray[numpy.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossedInterval(Interval):
    """A mean over n seeds and over questions, with an interval over both."""

    questions: int
    over_seeds: float
    """Standard error if only the seeds were drawn anew."""
    over_questions: float
    """Standard error if only the questions were drawn anew."""
    question_error: float
    """The part of `over_questions` that more seeds would not reduce."""


def crossed_interval(
    values: Values | Sequence[Sequence[float]],
    *,
    kinds: Sequence[Hashable] | None = None,
    clusters: Sequence[Hashable] | None = None,
    level: float = 0.95,
) -> CrossedInterval:
    """Return the mean of values `[seed, question]` with its interval over seeds and questions.

    The variance is at least that of either way alone. The degrees of freedom are Satterthwaite's,
    from the parts that are added, and at least those of the seeds. With one seed, or a kind of one
    cluster, the interval is infinite.
    """
    d = numpy.asarray(values, dtype=float)
    seeds, questions = d.shape
    kind = _numbered(kinds if kinds is not None else [0] * questions)
    cluster = _numbered(clusters if clusters is not None else range(questions))
    per_kind, groups = numpy.bincount(kind), int(cluster.max()) + 1
    weights = 1 / (len(per_kind) * per_kind[kind])
    means = d @ weights
    # How many clusters each kind has; one that has questions of several kinds counts in each.
    in_kind = numpy.zeros((groups, len(per_kind)), dtype=bool)
    in_kind[cluster, kind] = True
    units = in_kind.sum(0)
    of_seeds = of_questions = lasting = reach = math.inf
    if seeds > 1 and units.min() > 1:
        correction = numpy.sqrt(units / (units - 1))
        deviations = (d - _sums(d, kind)[:, kind] / per_kind[kind]) * weights * correction[kind]
        by_cluster = _sums(deviations, cluster)
        parts = numpy.zeros((groups, len(per_kind)))
        numpy.add.at(parts, (cluster, kind), deviations.mean(0))
        of_kinds = (parts * parts.sum(1, keepdims=True)).sum(0)  # add up to the questions' part
        of_seeds, of_questions = float(means.var(ddof=1)) / seeds, float(of_kinds.sum())
        rest = float(by_cluster.var(0, ddof=1).sum()) / seeds
        lasting = max(0.0, of_questions - rest)
        variance = max(of_seeds + lasting, of_questions)
        reach = 0.0
        if variance:
            spread = of_seeds**2 / (seeds - 1) + float((of_kinds**2 / (units - 1)).sum())
            # A whole number may come out just below.
            freedom = max(seeds - 1, math.floor(variance**2 / spread + 1e-9))
            reach = t_quantile((1 + level) / 2, freedom) * math.sqrt(variance)
    return CrossedInterval(
        mean=float(means.mean()),
        half_width=reach,
        n=seeds,
        questions=questions,
        over_seeds=math.sqrt(of_seeds),
        over_questions=math.sqrt(of_questions),
        question_error=math.sqrt(lasting),
    )


def seeds_needed(
    margin: float,
    *,
    seed_deviation: float,
    question_error: float = 0.0,
    power: float = 0.8,
    level: float = 0.95,
    most: int = 1000,
) -> int | None:
    """Return the fewest seeds with which non-inferiority is met with a given power.

    That is if there is no difference: the interval of the difference is then above minus the margin
    with that probability. `seed_deviation` is the standard deviation over seeds of a pilot's paired
    differences (`over_seeds` x sqrt(n)), `question_error` the pilot's own, which does not shrink
    with more seeds; none is returned where it alone forbids that power.
    """
    if question_error and _power(margin / question_error, most, level) < power:
        return None
    for seeds in range(2, most + 1):
        error = math.hypot(seed_deviation / math.sqrt(seeds), question_error)
        if error == 0 or _power(margin / error, seeds - 1, level) >= power:
            return seeds
    return None


def _power(shift: float, freedom: int, level: float) -> float:
    """Return P(T > t) of Student's T shifted by its noncentrality, t that of the interval."""
    t = t_quantile((1 + level) / 2, freedom)
    # The deviation that is estimated, over the true one: chi with so many degrees, over their root.
    ratio = (numpy.arange(1000) + 0.5) / 1000 * 4
    log = (freedom - 1) * numpy.log(ratio) - freedom * ratio**2 / 2
    weights = numpy.exp(log - log.max())
    above = [math.erfc((t * r - shift) / math.sqrt(2)) / 2 for r in ratio]
    return float(weights @ above / weights.sum())


def _numbered(labels: Sequence[Hashable]) -> NDArray[numpy.intp]:
    numbers: dict[Hashable, int] = {}
    return numpy.array([numbers.setdefault(label, len(numbers)) for label in labels])


def _sums(values: Values, label: NDArray[numpy.intp]) -> Values:
    """Return the sums of the columns of each label, `[row, label]`."""
    sums = numpy.zeros((len(values), int(label.max()) + 1))
    numpy.add.at(sums.T, label, values.T)
    return sums
