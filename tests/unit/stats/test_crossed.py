"""Intervals over seeds and questions together, against simulation and a bootstrap over both."""

from __future__ import annotations

import math

import numpy
import pytest

from bas_opd.stats.crossed import crossed_interval, seeds_needed
from bas_opd.stats.intervals import mean_interval

Random = numpy.random.Generator


def drawn(
    random: Random, seeds: int, pictures: int, *, seed_sd: float, question_sd: float, sd: float
) -> numpy.ndarray:
    """Values of two questions to a picture, [seed, question], around a mean of zero."""
    pairs = random.normal(0, question_sd, pictures).repeat(2)
    rest = random.normal(0, sd, (seeds, pictures)).repeat(2, 1)
    return random.normal(0, seed_sd, (seeds, 1)) + pairs + rest


@pytest.mark.parametrize(
    ("seed_sd", "question_sd", "sd"),
    [(0.3, 0.0, 1.0), (0.0, 1.0, 1.0), (0.15, 1.0, 1.0), (0.0, 0.0, 1.0)],
    ids=["seeds", "questions", "both", "neither"],
)
@pytest.mark.parametrize("seeds", [5, 16])
def test_it_covers_the_mean_as_often_as_it_says(
    seeds: int, seed_sd: float, question_sd: float, sd: float
) -> None:
    random = numpy.random.default_rng(0)
    clusters = [place // 2 for place in range(160)]
    kinds = ["a"] * 40 + ["b"] * 120
    hits = 0
    for _ in range(400):
        values = drawn(random, seeds, 80, seed_sd=seed_sd, question_sd=question_sd, sd=sd)
        hits += crossed_interval(values, kinds=kinds, clusters=clusters).holds_zero
    # 95 % of 400, less three standard errors. Where the parts are kept from vanishing it is wider.
    assert hits >= 367
    assert hits < 400 or not (seed_sd or question_sd)


def test_intervals_over_one_way_alone_would_miss_the_mean_too_often() -> None:
    random = numpy.random.default_rng(1)
    clusters = [place // 2 for place in range(160)]
    by_seed = by_question = by_both = 0
    for _ in range(300):
        values = drawn(random, 16, 80, seed_sd=0.12, question_sd=1.0, sd=1.0)
        by_both += crossed_interval(values, clusters=clusters).holds_zero
        by_seed += mean_interval(values.mean(1).tolist()).holds_zero
        by_question += mean_interval(values[:, ::2].mean(0).tolist()).holds_zero
    assert by_both >= 272
    assert by_seed < 220
    assert by_question < 285


def test_it_is_as_wide_as_a_bootstrap_over_both_ways() -> None:
    """The bootstrap counts the rest twice, so it is a little wider; here that is little."""
    random = numpy.random.default_rng(2)
    values = drawn(random, 30, 200, seed_sd=0.2, question_sd=1.0, sd=0.5)
    kinds, clusters = ["a"] * 100 + ["b"] * 300, [place // 2 for place in range(400)]
    weights = numpy.array([1 / 200] * 100 + [1 / 600] * 300)
    means = []
    for _ in range(2000):
        seeds = random.integers(30, size=30)
        pictures = numpy.concatenate([random.integers(50, size=50), random.integers(50, 200, 150)])
        places = numpy.stack([2 * pictures, 2 * pictures + 1], 1).ravel()
        means.append((values[numpy.ix_(seeds, places)] @ weights).mean())
    interval = crossed_interval(values, kinds=kinds, clusters=clusters)
    assert interval.mean == pytest.approx((values @ weights).mean())
    bootstrap = numpy.subtract(*numpy.quantile(means, [0.975, 0.025])) / 2
    assert interval.half_width == pytest.approx(bootstrap, rel=0.1)


def test_what_more_seeds_do_not_reduce_is_told_apart() -> None:
    random = numpy.random.default_rng(9)
    clusters = [place // 2 for place in range(4000)]
    for question_sd in (0.0, 1.0):
        values = drawn(random, 4, 2000, seed_sd=0.1, question_sd=question_sd, sd=2.0)
        found = crossed_interval(values, clusters=clusters)
        lasting, rest = question_sd / math.sqrt(2000), 2.0 / math.sqrt(4 * 2000)
        assert found.question_error == pytest.approx(lasting, abs=0.007)
        assert found.over_questions == pytest.approx(math.hypot(lasting, rest), rel=0.1)


def test_seeds_that_do_not_differ_leave_the_interval_over_questions() -> None:
    values = numpy.random.default_rng(3).normal(size=(1, 500)).repeat(40, 0)
    interval = crossed_interval(values)
    plain = mean_interval(values[0].tolist())
    assert interval.mean == pytest.approx(plain.mean)
    assert interval.half_width == pytest.approx(plain.half_width, rel=1e-3)
    assert interval.over_seeds == pytest.approx(0)


@pytest.mark.parametrize("questions", [24, 32, 33, 59])
def test_a_whole_number_of_degrees_of_freedom_is_not_rounded_to_the_one_below(
    questions: int,
) -> None:
    values = [float(place % 2) for place in range(questions)]
    interval = crossed_interval([values] * 3)
    assert interval.half_width == pytest.approx(mean_interval(values).half_width, rel=1e-9)


def test_questions_that_do_not_differ_leave_the_interval_over_seeds() -> None:
    means = numpy.random.default_rng(4).normal(size=6)
    interval = crossed_interval(means[:, None].repeat(500, 1))
    plain = mean_interval(means.tolist())
    assert (interval.mean, interval.n, interval.questions) == (pytest.approx(plain.mean), 6, 500)
    assert interval.half_width == pytest.approx(plain.half_width)
    assert interval.over_questions == pytest.approx(0)


def test_it_is_never_narrower_than_either_way_alone() -> None:
    random = numpy.random.default_rng(5)
    for _ in range(50):
        interval = crossed_interval(random.normal(size=(4, 30)))
        least = 1.96 * max(interval.over_seeds, interval.over_questions)
        assert interval.half_width >= least


def test_kinds_weigh_the_same_and_copies_of_a_question_in_one_cluster_add_nothing() -> None:
    values = numpy.random.default_rng(6).normal(size=(5, 60))
    kinds = ["a"] * 20 + ["b"] * 40
    once = crossed_interval(values, kinds=kinds)
    by_kind = (values[:, :20].mean() + values[:, 20:].mean()) / 2
    assert once.mean == pytest.approx(by_kind)
    twice = crossed_interval(
        values.repeat(2, 1),
        kinds=[kind for kind in kinds for _ in range(2)],
        clusters=[place // 2 for place in range(120)],
    )
    assert twice.half_width == pytest.approx(once.half_width)
    apart = crossed_interval(values.repeat(2, 1), kinds=[k for k in kinds for _ in range(2)])
    assert apart.over_questions < 0.8 * once.over_questions


def test_a_picture_with_questions_of_two_kinds_is_one_cluster() -> None:
    column = numpy.random.default_rng(8).normal(size=(5, 40))
    kinds, values = ["a"] * 40 + ["b"] * 40, numpy.concatenate([column, column], 1)
    joined = crossed_interval(values, kinds=kinds, clusters=[*range(40), *range(40)])
    assert joined.over_questions == pytest.approx(crossed_interval(column).over_questions)
    apart = crossed_interval(values, kinds=kinds)
    assert apart.over_questions == pytest.approx(joined.over_questions / math.sqrt(2))


@pytest.mark.parametrize("shape", [(1, 9), (9, 1)])
def test_one_seed_or_one_question_has_no_interval(shape: tuple[int, int]) -> None:
    assert math.isinf(crossed_interval(numpy.ones(shape)).half_width)


def test_what_never_varies_has_no_width() -> None:
    assert crossed_interval(numpy.ones((3, 4))).half_width == 0


def test_the_number_of_seeds_gives_the_power_that_was_asked_for() -> None:
    """Simulated: with that many seeds non-inferiority is met in four of five studies."""
    margin, deviation = 1.0, 1.5
    needed = seeds_needed(margin, seed_deviation=deviation)
    assert needed is not None
    random = numpy.random.default_rng(7)

    def share_met(seeds: int) -> float:
        values = random.normal(0, deviation, (4000, seeds))
        reach = mean_interval(list(range(seeds))).half_width / numpy.std(range(seeds), ddof=1)
        return float((values.mean(1) - reach * values.std(1, ddof=1) > -margin).mean())

    assert share_met(needed) == pytest.approx(0.8, abs=0.03)
    assert share_met(needed - 3) < 0.8


def test_the_number_of_seeds_is_that_of_the_noncentral_t() -> None:
    stats = pytest.importorskip("scipy.stats")
    for deviation in (0.5, 1.5, 3.0):
        needed = seeds_needed(1.0, seed_deviation=deviation)
        assert needed is not None
        powers = [
            1 - stats.nct.cdf(stats.t.ppf(0.975, n - 1), n - 1, math.sqrt(n) / deviation)
            for n in (needed - 1, needed)
            if n > 1
        ]
        assert powers[-1] >= 0.8
        assert len(powers) == 1 or powers[0] < 0.8


def test_questions_too_few_for_the_margin_are_not_outnumbered_by_seeds() -> None:
    assert seeds_needed(1.0, seed_deviation=1.5, question_error=0.2) is not None
    assert seeds_needed(1.0, seed_deviation=1.5, question_error=0.5) is None
