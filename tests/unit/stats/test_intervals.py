"""Intervals against published quantiles."""

from __future__ import annotations

import math
import random

import pytest

from bas_opd.stats.intervals import (
    mean_interval,
    paired_difference,
    stratified_mean,
    t_quantile,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("probability", "freedom", "published"),
    [
        (0.975, 1, 12.706205),
        (0.975, 2, 4.302653),
        (0.975, 3, 3.182446),
        (0.975, 4, 2.776445),
        (0.95, 4, 2.131847),
        (0.995, 4, 4.604095),
        (0.975, 9, 2.262157),
        (0.975, 30, 2.042272),
        (0.975, 100, 1.983972),
        (0.75, 5, 0.726687),
    ],
)
def test_a_quantile_is_the_published_one(
    probability: float, freedom: int, published: float
) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(published, abs=1e-6)
    assert t_quantile(1 - probability, freedom) == pytest.approx(-published, abs=1e-6)


def test_with_many_degrees_of_freedom_student_is_normal() -> None:
    assert t_quantile(0.975, 100_000) == pytest.approx(1.959988, abs=1e-5)
    assert t_quantile(0.5, 7) == 0


@pytest.mark.parametrize(("probability", "freedom"), [(0.0, 4), (1.0, 4), (0.975, 0)])
def test_a_quantile_that_does_not_exist_is_refused(probability: float, freedom: int) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        t_quantile(probability, freedom)


def test_the_interval_of_known_values() -> None:
    interval = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert interval.mean == pytest.approx(3.0)
    assert interval.half_width == pytest.approx(2.776445 * math.sqrt(2.5 / 5), abs=1e-6)
    assert interval.n == 5


def test_an_interval_holds_the_truth_as_often_as_its_level_says() -> None:
    draws = random.Random(0)
    for level in (0.5, 0.95):
        held = 0
        for _ in range(2000):
            interval = mean_interval([draws.gauss(7, 3) for _ in range(5)], level)
            held += abs(interval.mean - 7) <= interval.half_width
        assert held / 2000 == pytest.approx(level, abs=0.03)


def test_of_one_value_nothing_is_certain() -> None:
    interval = mean_interval([0.3])
    assert (interval.mean, interval.half_width, interval.n) == (0.3, math.inf, 1)
    assert interval.holds_zero


def test_what_pairs_have_in_common_falls_out() -> None:
    common = [10.0, 20.0, 30.0]
    difference = paired_difference([1.1 + c for c in common], common)
    assert difference.mean == pytest.approx(1.1)
    assert difference.half_width == pytest.approx(0.0, abs=1e-12)
    assert not difference.holds_zero
    assert paired_difference([1.0, -1.0], [0.0, 0.0]).holds_zero


def test_values_without_a_partner_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        paired_difference([1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    ("successes", "n", "published"),
    [(81, 263, (0.2553, 0.3662)), (15, 148, (0.0624, 0.1605)), (0, 20, (0.0, 0.1611))],
)
def test_the_interval_of_a_share_is_the_published_one(
    successes: int, n: int, published: tuple[float, float]
) -> None:
    """The examples of Newcombe (1998), method 3."""
    assert wilson_interval(successes, n) == pytest.approx(published, abs=5e-5)
    low, high = wilson_interval(n - successes, n)
    assert (1 - high, 1 - low) == pytest.approx(published, abs=5e-5)


def test_one_stratum_is_a_plain_mean() -> None:
    values = [1.0, 0.0, 0.5, -1.0]
    assert stratified_mean([values]) == mean_interval(values)


def test_strata_weigh_the_same_whatever_their_sizes() -> None:
    """Welch's interval of (-a, b) is twice that of their mean: both are sums of two means."""
    a, b = [1.0, 2.0, 4.0, 3.0], [0.0, 6.0]
    found = stratified_mean([a, b])
    assert found.mean == pytest.approx(2.75)
    variances = (5 / 3 / 4, 18 / 2)
    freedom = sum(variances) ** 2 / (variances[0] ** 2 / 3 + variances[1] ** 2 / 1)
    assert math.floor(freedom) == 1
    reach = t_quantile(0.975, 1) * math.sqrt(sum(variances)) / 2
    assert (found.half_width, found.n) == (pytest.approx(reach), 6)


def test_a_stratum_of_one_value_leaves_the_interval_unknown_and_equal_values_no_width() -> None:
    assert stratified_mean([[1.0, 0.0], [1.0]]).half_width == math.inf
    assert stratified_mean([[1.0, 1.0], [0.0, 0.0]]).half_width == 0.0


def test_the_stratified_interval_covers_the_mean_as_often_as_it_says() -> None:
    draw = random.Random(0)
    held = 0
    for _ in range(1000):
        strata = [[draw.gauss(k, 1 + k) for _ in range(6 + 5 * k)] for k in range(3)]
        found = stratified_mean(strata)
        held += abs(found.mean - 1) <= found.half_width
    assert 930 <= held <= 980
