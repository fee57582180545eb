"""What the generator says of an answer's end decides how the answer is read."""

from __future__ import annotations

import pytest

from bas_opd.evaluate.benchmarks import benchmark
from bas_opd.evaluate.questions import Form, Output, Picture, Question
from bas_opd.evaluate.scoring import by_rule

LONG = (
    "Let us simplify the left side of the equation first, then its right side, and then add both "
    "sides, step by step, until one number is left."
)
RED = "The picture shows a street with a car, and the car is red."


def outcome(form: Form, reference: str, text: str, *, is_cut: bool | None) -> str:
    """Return the verdict of the rule, or `deferred`."""
    question = Question(
        id="1",
        picture=Picture(lambda: b"", name="none"),
        prompt="?",
        form=form,
        reference=reference,
        options={"A": "red", "B": "blue"} if form == "choice" else {},
    )
    scored = by_rule(benchmark("vstar"), question, Output(text=text, is_cut=is_cut))
    return "deferred" if scored is None else scored.outcome


@pytest.mark.parametrize(
    ("is_cut", "due"), [(False, "correct"), (None, "correct"), (True, "wrong")]
)
def test_a_value_without_a_full_stop_counts_unless_the_text_was_cut(
    is_cut: bool | None, due: str
) -> None:
    assert outcome("short", "2", f"{LONG} The final value is: 2", is_cut=is_cut) == due


@pytest.mark.parametrize(
    ("is_cut", "due"), [(False, "correct"), (None, "correct"), (True, "wrong")]
)
def test_an_option_that_a_cut_text_only_mentions_is_no_answer(
    is_cut: bool | None, due: str
) -> None:
    assert outcome("choice", "A", RED, is_cut=is_cut) == due


@pytest.mark.parametrize("is_cut", [False, None, True])
def test_a_cut_text_that_answered_first_has_answered(is_cut: bool | None) -> None:
    said = "The answer is (A) red. The car in the picture is"
    assert outcome("choice", "A", said, is_cut=is_cut) == "correct"
    assert outcome("yes_no", "yes", "Yes, there is a car in the", is_cut=is_cut) == "correct"


def test_a_cut_text_that_leaves_it_open_is_wrong_and_costs_no_judge() -> None:
    said = "It could be red or blue, and the light"
    assert outcome("choice", "A", said, is_cut=True) == "wrong"
    assert outcome("choice", "A", f"{said} is odd.", is_cut=False) == "deferred"
