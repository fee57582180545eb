"""The words and the table of a demo, whatever came out of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_fixtures import evaluate

from bas_opd.errors import DataError
from bas_opd.report.demo import compared, read_demo


def outcomes(right: int, n: int = 100) -> list[bool]:
    return [place < right for place in range(n)]


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (60, 40, ("20 more of 100", "than b", "(+20.0 points", ": a gain.")),
        (40, 60, ("20 fewer of 100", "than b", "(-20.0 points", ": a loss.")),
        (51, 50, ("1 more of 100", "(+1.0 points", ": not significantly different.")),
        (49, 50, ("1 fewer of 100", "(-1.0 points", ": not significantly different.")),
    ],
)
def test_a_loss_is_a_loss_and_what_may_be_chance_is_said_to_be(
    a: int, b: int, words: tuple[str, ...]
) -> None:
    sentence = compared("a", outcomes(a), "b", outcomes(b))
    for part in words:
        assert part in sentence
    assert (a > b) == ("gain" in sentence or "more" in sentence)


def test_as_many_right_answers_to_other_questions_are_no_difference() -> None:
    sentence = compared("a", [True, False, True], "b", [False, True, True])
    assert sentence.startswith("a has as many of 3 questions right as b (+0.0 points")
    assert compared("a", [True, False], "b", [True, False]) == (
        "a and b have the same 1 of 2 questions right."
    )


def test_an_incomplete_or_damaged_demo_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is incomplete"):
        read_demo(tmp_path)
    evaluate(tmp_path / "base", [True, False])
    with pytest.raises(DataError, match="is damaged"):
        read_demo(tmp_path)
