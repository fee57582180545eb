"""Shares, intervals, and means of them."""

from __future__ import annotations

import pytest

from bas_opd.evaluate.benchmarks import SEVEN, Measure, Scored, Summary, benchmark, overall
from bas_opd.evaluate.benchmarks.summary import Note, accuracy, blend, grouped, mean, share
from bas_opd.stats.intervals import wilson_interval


def summary(name: str, correct: int, n: int) -> Summary:
    number = share("accuracy", correct, n)
    return Summary(
        benchmark=name,
        n=n,
        expected=n,
        primary=number,
        rule_only=number,
        also=(),
        deferred=0,
        unscored=0,
    )


def test_an_unscored_sample_counts_in_the_denominator_and_is_shown() -> None:
    scored = [Scored(id="1", outcome="correct"), Scored(id="2", outcome="unscored", source="judge")]
    measure = accuracy(scored)
    assert (measure.value, measure.n, measure.correct) == (0.5, 2, 1)
    assert measure.interval == wilson_interval(1, 2)
    shown = benchmark("vstar").summarise(scored)
    assert (shown.unscored, shown.deferred) == (1, 1)


def test_what_the_judge_called_right_is_not_the_rules() -> None:
    shown = benchmark("mmstar").summarise(
        [
            Scored(id="1", outcome="correct", source="judge"),
            Scored(id="2", outcome="wrong", source="judge"),
            Scored(id="3", outcome="correct"),
        ]
    )
    assert (shown.primary.correct, shown.rule_only.correct, shown.rule_only.n) == (2, 1, 3)


def test_answers_that_were_cut_empty_or_refused_are_counted() -> None:
    notes: list[Note] = ["cut", "cut", "empty", "refused", "", "", "", ""]
    scored = [Scored(id=str(n), outcome="wrong", note=note) for n, note in enumerate(notes)]
    shown = benchmark("mmstar").summarise(scored)
    assert (shown.cut, shown.empty, shown.refused) == (2, 1, 1)
    assert shown.rate(shown.cut) == 0.25


def test_a_mean_of_shares_has_an_interval_narrower_than_theirs() -> None:
    halves = [share("a", 50, 100), share("b", 50, 100)]
    both = mean("both", halves)
    low, high = wilson_interval(50, 100)
    assert both.value == 0.5
    assert both.interval is not None
    assert both.interval == pytest.approx((0.5 - (0.5 - low) / 2**0.5, 0.5 + (high - 0.5) / 2**0.5))
    assert both.n == 200


def test_a_blend_weighs_its_parts_and_stays_between_nought_and_one() -> None:
    measure = blend("b", [(0.75, share("a", 10, 10)), (0.25, share("b", 0, 10))])
    assert measure.value == 0.75
    assert measure.interval is not None
    assert 0 < measure.interval[0] < 0.75 < measure.interval[1] <= 1
    assert blend("b", [(0.5, share("a", 1, 1)), (0.5, share("b", 0, 0))]).value is None
    assert mean("nothing", []).value is None


def test_a_sample_without_a_group_is_in_none_of_its_parts() -> None:
    scored = [Scored(id="1", outcome="correct", groups={"g": "b"}), Scored(id="2", outcome="wrong")]
    assert list(grouped(scored, "g")) == ["b"]


def test_the_average_is_the_unweighted_mean_of_the_seven() -> None:
    seven = [summary(name, place, 10 + place) for place, name in enumerate(SEVEN)]
    average = overall([*seven, summary("finesearch", 1, 1)])
    assert average is not None
    assert average.value == pytest.approx(sum(i / (10 + i) for i in range(7)) / 7)


def test_there_is_no_average_of_six() -> None:
    assert overall([summary(name, 1, 2) for name in SEVEN[1:]]) is None


def test_an_undefined_number_makes_the_average_undefined() -> None:
    shown = [summary(name, 1, 2) for name in SEVEN[1:]] + [summary(SEVEN[0], 0, 0)]
    average = overall(shown)
    assert isinstance(average, Measure)
    assert average.value is None
