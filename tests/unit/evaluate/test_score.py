"""Accuracies from graded answers."""

from __future__ import annotations

import pytest

from bas_opd.evaluate.runner import Graded
from bas_opd.evaluate.score import accuracy


def graded(name: str, kind: str, is_correct: bool) -> Graded:
    return Graded(id=name, kind=kind, answer="x", output="y", is_correct=is_correct)


def test_the_mean_is_over_kinds_and_micro_over_questions() -> None:
    scores = accuracy(
        [graded(f"c{i}", "colour", True) for i in range(3)] + [graded("n", "count", False)]
    )
    assert list(scores.kinds) == ["colour", "count"]
    assert scores.mean == pytest.approx(0.5)
    assert scores.micro == pytest.approx(0.75)
    assert scores.pairs is None


def test_a_pair_is_right_only_if_both_of_it_are() -> None:
    scores = accuracy(
        [
            graded("s1-a", "pair", True),
            graded("s2-a", "pair", True),
            graded("s1-b", "pair", True),
            graded("s2-b", "pair", False),
        ]
    )
    assert scores.kinds["pair"].accuracy == pytest.approx(0.75)
    assert scores.pairs is not None
    assert (scores.pairs.n, scores.pairs.correct) == (2, 1)


def test_half_a_pair_and_a_namesake_of_another_kind_are_no_pair() -> None:
    scores = accuracy(
        [
            graded("s1-a", "pair", True),
            graded("s2-b", "pair", True),
            graded("s1-b", "colour", True),
        ]
    )
    assert scores.pairs is None
    assert scores.kinds["pair"].n == 2
