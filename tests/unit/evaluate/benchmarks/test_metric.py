"""The definition of accuracy: which number is primary, and differences of it."""

from __future__ import annotations

from itertools import product

import pytest

from bas_opd.evaluate.benchmarks import Scored, benchmark
from bas_opd.evaluate.benchmarks.metric import ALL_QUESTIONS, MEAN_OF_KINDS, primary_metric
from bas_opd.evaluate.results import compare
from bas_opd.stats.resampling import mcnemar


def answers(**kinds: str) -> list[Scored]:
    """Answers to the questions of each kind, + for a right one."""
    return [
        Scored(
            id=f"{kind}-{place}",
            outcome="correct" if one == "+" else "wrong",
            groups={"kind": kind.replace("none", "")},
        )
        for kind, right in kinds.items()
        for place, one in enumerate(right)
    ]


@pytest.mark.parametrize(
    ("kinds", "name"),
    [
        ({"colour", "count"}, "mean of kinds"),
        ({"colour", ""}, "mean of kinds"),
        ({"colour"}, "all questions"),
        ({""}, "all questions"),
        (set[str](), "all questions"),
    ],
)
def test_a_set_with_kinds_has_their_mean_and_any_other_all_its_questions(
    kinds: set[str], name: str
) -> None:
    assert primary_metric(kinds).name == name


def test_both_accuracies_of_a_set_have_their_names() -> None:
    summary = benchmark("finesearch").summarise(answers(count="+---", colour="+"))
    assert (summary.primary.name, summary.primary.value) == ("mean of kinds", 0.625)
    assert summary.beside is not None
    assert (summary.beside.name, summary.beside.value) == ("all questions", 0.4)


def test_a_set_without_kinds_has_one_accuracy() -> None:
    summary = benchmark("finesearch").summarise(answers(none="+--"))
    assert (summary.primary.name, summary.primary.correct, summary.primary.n) == (
        "all questions",
        1,
        3,
    )
    assert summary.beside is None
    assert [each.name for each in summary.also] == ["pair accuracy"]


def test_a_benchmark_keeps_its_official_metric() -> None:
    assert benchmark("cvbench").metric([]).name == "mean of 2D and 3D"
    for name in ("vstar", "zoombench", "hrbench4k", "mmvp", "mmstar", "pope"):
        assert benchmark(name).metric([]) == ALL_QUESTIONS


def test_a_difference_is_that_of_the_two_numbers() -> None:
    a, b = answers(count="++-+--", colour="-+-"), answers(count="+--+-+", colour="++-")
    for metric in (MEAN_OF_KINDS, ALL_QUESTIONS):
        found = compare(a, b, metric)
        of_a, of_b = metric.measure(a).value, metric.measure(b).value
        assert of_a is not None
        assert of_b is not None
        assert found.metric == metric.name
        assert found.difference.mean == pytest.approx(of_a - of_b)
    assert compare(a, b, ALL_QUESTIONS).beside is None
    beside = compare(a, b, MEAN_OF_KINDS).beside
    assert beside == compare(a, b, ALL_QUESTIONS).difference


def test_kinds_of_one_size_have_the_p_of_mcnemar() -> None:
    a, b = answers(count="+++++-", colour="++++++"), answers(count="------", colour="+++---")
    assert compare(a, b, MEAN_OF_KINDS).p_value == mcnemar(8, 0)


def test_kinds_of_other_sizes_have_the_p_of_all_tosses() -> None:
    a, b = answers(count="+++-++", colour="++--"), answers(count="------", colour="--+-")
    observed = 5 / 6 + 1 / 4
    tosses = list(product((1, -1), repeat=8))
    sums = [abs(sum(toss[:5]) / 6 + sum(toss[5:]) / 4) for toss in tosses]
    exact = sum(each >= observed - 1e-9 for each in sums) / len(sums)
    assert compare(a, b, MEAN_OF_KINDS).p_value == pytest.approx(exact, abs=0.005)
    assert compare(a, b, MEAN_OF_KINDS) == compare(a, b, MEAN_OF_KINDS)
