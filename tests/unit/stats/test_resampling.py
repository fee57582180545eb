"""Flips, resamples and ranks against scipy and cases worked out by hand."""

from __future__ import annotations

import math
import random
from itertools import product

import numpy
import pytest
from scipy import stats

from bas_opd.stats.resampling import (
    MOST_UNITS,
    bootstrap_interval,
    holm,
    sign_flip_p,
    spearman,
)


@pytest.mark.parametrize("n", [2, 5, 10, 11])
def test_flips_are_counted_as_scipy_counts_them(n: int) -> None:
    draws = random.Random(n)
    for _ in range(5):
        differences = [draws.gauss(0.4, 1) for _ in range(n)]
        # scipy takes pairs, and swapping a pair flips the sign of its difference.
        exact = stats.permutation_test(
            (differences, [0.0] * n),
            lambda a, b, axis: numpy.sum(a - b, axis=axis),
            permutation_type="samples",
            alternative="greater",
            n_resamples=2**n,
            vectorized=True,
        )
        assert sign_flip_p(differences) == pytest.approx(exact.pvalue, abs=1e-12)


def test_ten_batches_that_agree_have_the_smallest_p_there_is() -> None:
    differences = [0.1 * (i + 1) for i in range(10)]
    assert sign_flip_p(differences) == 1 / 1024
    assert sign_flip_p([-d for d in differences]) == 1.0
    assert holm([1 / 1024] * 3) == pytest.approx([3 / 1024] * 3)
    assert sign_flip_p([0.1]) == 0.5
    # The paper's 0.006 is that of two flips: the smallest difference may point either way.
    tied = [0.0, *differences[1:]]
    assert holm([sign_flip_p(tied)] * 3)[0] == pytest.approx(0.006, abs=2e-4)


def test_flips_that_differ_by_rounding_alone_are_ties() -> None:
    # 0.1 + 0.2 - 0.3 is 5.6e-17 in floats; flipping all three changes nothing.
    differences = [0.1, 0.2, -0.3]
    flips = [
        sum(s * d for s, d in zip(signs, differences, strict=True))
        for signs in product((1, -1), repeat=3)
    ]
    assert sign_flip_p(differences) == sum(flip >= -1e-9 for flip in flips) / 8
    assert sign_flip_p([0.0] * 4) == 1.0


def test_as_many_batches_as_are_allowed_are_flipped_exactly() -> None:
    assert sign_flip_p([1.0] * 30) == 2.0**-30
    with pytest.raises(ValueError, match="1 to 40 pairs, not 41"):
        sign_flip_p([1.0] * (MOST_UNITS + 1))
    with pytest.raises(ValueError, match="not 0"):
        sign_flip_p([])


def test_holm_steps_down() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == (1.0, 1.0)
    assert holm([]) == ()


def test_the_bootstrap_is_that_of_scipy() -> None:
    draws = random.Random(0)
    wholes = [draws.uniform(1, 3) for _ in range(12)]
    parts = [whole * draws.uniform(0.3, 0.7) for whole in wholes]
    ours = bootstrap_interval(parts, wholes)
    theirs = stats.bootstrap(
        (parts, wholes),
        lambda a, b, axis: numpy.sum(a, axis=axis) / numpy.sum(b, axis=axis),
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=10_000,
        rng=numpy.random.default_rng(1),
    ).confidence_interval
    assert ours.value == pytest.approx(sum(parts) / sum(wholes))
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs), abs=2e-3)
    assert bootstrap_interval(parts, wholes) == ours


def test_the_bootstrap_of_two_units_has_three_outcomes() -> None:
    """Of 0 and 1, a quarter of the resamples have mean 0, half 0.5, a quarter 1."""
    mean = bootstrap_interval([0.0, 1.0])
    assert (mean.value, mean.low, mean.high) == (0.5, 0.0, 1.0)
    narrow = bootstrap_interval([0.0, 1.0], level=0.4)
    assert (narrow.low, narrow.high) == (0.5, 0.5)


def test_of_one_unit_nothing_is_certain_and_of_none_with_a_share_neither() -> None:
    one = bootstrap_interval([0.2], [0.8])
    assert (one.value, one.low, one.high) == (0.25, -math.inf, math.inf)
    assert bootstrap_interval([0.0, 1.0], [0.0, 2.0]).low == 0.5


def test_ranks_correlate_as_in_scipy_ties_included() -> None:
    draws = random.Random(3)
    a = [draws.randrange(6) for _ in range(40)]
    b = [x + draws.randrange(8) for x in a]
    assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b)[0])
    assert spearman([1, 2, 3], [10, 30, 20]) == pytest.approx(0.5)


def test_a_constant_correlates_with_nothing() -> None:
    assert spearman([1, 1, 1], [1, 2, 3]) is None
    assert spearman([1], [2]) is None
