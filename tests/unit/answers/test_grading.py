from __future__ import annotations

import pytest

from bas_opd.answers import AnswerKey, answer_key, choice, grade, short
from bas_opd.types import Grade

COLOUR = "What colour is the mug?\nA. red\nB. blue\nC. green\nD. grey"


def key(question: str, answer: str) -> AnswerKey:
    found = answer_key(question, answer)
    assert found is not None
    return found


@pytest.mark.parametrize("answer", ["B", "(b)", "B.", "blue"])
def test_listed_options_make_a_choice_of_the_answer(answer: str) -> None:
    assert (key(COLOUR, answer).form, key(COLOUR, answer).reference) == ("choice", "B")


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("B", "right"),
        ("It looks grey at first, but the answer is B.", "right"),
        ("The answer is (B) blue.", "right"),
        ("The answer is C.", "wrong"),
        ("B or C", "wrong"),
        ("A B C D", "wrong"),
        ("", "wrong"),
    ],
)
def test_a_choice_earns_by_its_one_commitment(output: str, expected: Grade) -> None:
    graded = key(COLOUR, "B").grade(output)
    assert graded == expected or (expected == "wrong" and graded == "unread")
    assert (graded == "right") == (expected == "right")


def test_yes_and_no_are_read_as_such() -> None:
    asked = key("Is there a dog?", "No.")
    assert asked.form == "yes_no"
    assert asked.grade("No, there is none.") == "right"
    assert asked.grade("Yes, there is one.") == "wrong"


def test_other_answers_are_short_and_read_as_in_evaluation() -> None:
    asked = key("What colour is the mug?", "red")
    assert asked.form == "short"
    for output in ("red", "The mug is red.", "blue", "I cannot tell.", "It is red or blue."):
        if grade(output, "red") != "unread":
            assert asked.grade(output) == grade(output, "red")
        assert (asked.grade(output) == "right") == (short(output, "red").value is True)


def test_a_deferred_reading_is_unread_and_a_cut_one_wrong() -> None:
    asked = key(COLOUR, "B")
    output = next(
        text
        for text in ("Well, the mug is what it is.", "Something like the sky, I would say.")
        if choice(text, asked.options).status == "deferred"
    )
    assert asked.grade(output) == "unread"
    assert asked.grade(output, was_cut=True) == "wrong"


@pytest.mark.parametrize(("question", "answer"), [(COLOUR, "E"), (COLOUR, "pink"), ("Why?", "  ")])
def test_an_answer_that_no_rule_can_grade_has_no_key(question: str, answer: str) -> None:
    assert answer_key(question, answer) is None


def test_the_last_word_decides_where_that_is_the_rule() -> None:
    asked = answer_key("Which?", "red", by_last_word=True)
    assert asked is not None
    assert asked.grade("I see a blue plate. The answer is Red.") == "right"
    assert asked.grade("red, I think") == "wrong"
