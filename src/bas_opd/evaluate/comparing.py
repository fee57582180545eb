"""The paired comparison of two runs on the same questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks.summary import Scored
from bas_opd.stats.intervals import Interval, paired_difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How the answers of run a differ from those of run b."""

    n: int
    only_a: int
    """Questions that run a alone has right; an unscored answer is not right."""
    only_b: int
    difference: Interval
    """Accuracy of a minus that of b."""
    p_value: float
    """Probability that equally good runs differ at least this much (McNemar, exact, two-sided)."""


def compare(a: Sequence[Scored], b: Sequence[Scored]) -> Comparison:
    """Pair two runs by question; both must have answered the same questions."""
    first, second = _by_id(a), _by_id(b)
    if first.keys() != second.keys() or not first:
        raise DataError(
            f"The runs cannot be paired: {len(first.keys() - second.keys()):,} questions are in "
            f"the first alone, {len(second.keys() - first.keys()):,} in the second alone, and "
            f"{len(first.keys() & second.keys()):,} in both. Compare runs on one set of questions."
        )
    right = [(first[name].is_correct, second[name].is_correct) for name in first]
    only_a, only_b = right.count((True, False)), right.count((False, True))
    return Comparison(
        n=len(right),
        only_a=only_a,
        only_b=only_b,
        difference=paired_difference([float(x) for x, _ in right], [float(y) for _, y in right]),
        p_value=mcnemar(only_a, only_b),
    )


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


def _by_id(scored: Sequence[Scored]) -> dict[str, Scored]:
    by_id = {each.id: each for each in scored}
    if len(by_id) < len(scored):
        raise DataError(
            f"A run answers {len(scored) - len(by_id):,} questions twice. Compare the whole of one "
            "run with the whole of another."
        )
    return by_id
