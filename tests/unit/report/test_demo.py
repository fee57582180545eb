"""The words and the table of a demo, whatever came out of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from report_fixtures import evaluate

from bas_opd.errors import DataError
from bas_opd.evaluate.results import BenchmarkResult, read_evaluation
from bas_opd.report.demo import compared, read_demo


def evaluated(folder: Path, right: list[bool], kinds: Sequence[str]) -> BenchmarkResult:
    evaluate(folder, right, kinds=kinds)
    evaluation = read_evaluation(folder / "eval")
    assert evaluation is not None
    return evaluation.results[0]


def outcomes(right: int, n: int = 100) -> list[bool]:
    return [place < right for place in range(n)]


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (60, 40, ("a against b: +20.0 points (all questions, ", "), a gain.")),
        (40, 60, ("a against b: -20.0 points (all questions, ", "), a loss.")),
        (51, 50, ("a against b: +1.0 points (all questions, ", "), not significantly different.")),
        (49, 50, ("a against b: -1.0 points (all questions, ", "), not significantly different.")),
    ],
)
def test_a_loss_is_a_loss_and_what_may_be_chance_is_said_to_be(
    tmp_path: Path, a: int, b: int, words: tuple[str, ...]
) -> None:
    first, second = (
        evaluated(tmp_path / name, outcomes(right), [""]) for name, right in (("a", a), ("b", b))
    )
    sentence = compared("a", first, "b", second)
    for part in words:
        assert part in sentence


def test_a_difference_is_of_the_mean_of_kinds_with_that_of_all_questions_beside(
    tmp_path: Path,
) -> None:
    """One kind is three quarters of the questions: +2 of 60 and -5 of 20 are a loss of a sixth."""
    kinds = ["count", "count", "count", "colour"]
    before = [(place % 4 < 3 and place < 20) or place % 4 == 3 for place in range(80)]
    after = list(before)
    after[40], after[41] = True, True
    for place in (3, 7, 11, 15, 19):
        after[place] = False
    sentence = compared(
        "a", evaluated(tmp_path / "a", after, kinds), "b", evaluated(tmp_path / "b", before, kinds)
    )
    assert sentence.startswith("a against b: -10.8 points (mean of kinds, 95 % CI ")
    assert "; all questions -3.8), " in sentence


def test_the_same_answers_are_no_difference(tmp_path: Path) -> None:
    same = evaluated(tmp_path, [True, False], ["", ""])
    assert compared("a", same, "b", same) == "a and b have the same questions right."


def test_an_incomplete_or_damaged_demo_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is incomplete"):
        read_demo(tmp_path)
    evaluate(tmp_path / "base", [True, False])
    with pytest.raises(DataError, match="is damaged"):
        read_demo(tmp_path)
