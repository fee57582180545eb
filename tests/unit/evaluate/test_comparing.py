"""Two runs on one set of questions."""

from __future__ import annotations

import math

import pytest

from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks import Scored
from bas_opd.evaluate.benchmarks.metric import ALL_QUESTIONS
from bas_opd.evaluate.benchmarks.summary import Outcome
from bas_opd.evaluate.results import compare
from bas_opd.stats.resampling import mcnemar


def run(outcomes: str) -> list[Scored]:
    kinds: dict[str, Outcome] = {"+": "correct", "-": "wrong", "?": "unscored"}
    return [Scored(id=str(i), outcome=kinds[one]) for i, one in enumerate(outcomes)]


def test_questions_are_paired_by_id_whatever_their_order() -> None:
    result = compare(run("++-+?"), run("+--?+")[::-1], ALL_QUESTIONS)
    assert (result.n, result.only_a, result.only_b) == (5, 2, 1)
    assert result.difference.mean == pytest.approx(1 / 5)
    assert result.p_value == mcnemar(2, 1)


@pytest.mark.parametrize(
    ("only_a", "only_b", "p_value"),
    [(0, 0, 1.0), (1, 1, 1.0), (5, 0, 2 / 32), (0, 6, 2 / 64), (8, 2, 2 * (1 + 10 + 45) / 1024)],
)
def test_the_exact_test_of_hand_counted_cases(only_a: int, only_b: int, p_value: float) -> None:
    assert mcnemar(only_a, only_b) == pytest.approx(p_value)
    assert mcnemar(only_b, only_a) == mcnemar(only_a, only_b)


def test_thousands_of_differences_neither_overflow_nor_vanish() -> None:
    # The normal approximation with continuity correction is close at this size.
    z = (4600 - 4400 - 1) / math.sqrt(9000)
    assert mcnemar(4600, 4400) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=1e-2)
    assert mcnemar(9000, 0) == 0.0


def test_runs_on_other_questions_are_refused_with_how_many() -> None:
    with pytest.raises(DataError, match=r"1 questions are in the first alone, 0 in the second"):
        compare(run("+++"), run("++"), ALL_QUESTIONS)
    with pytest.raises(DataError, match="cannot be paired"):
        compare([], [], ALL_QUESTIONS)


def test_a_question_answered_twice_in_one_run_is_refused() -> None:
    with pytest.raises(DataError, match="answers 1 questions twice"):
        compare([*run("+"), *run("-")], run("+"), ALL_QUESTIONS)
