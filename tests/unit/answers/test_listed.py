"""Options as questions list them."""

from __future__ import annotations

import pytest

from bas_opd.answers.listed import answer_letter, ending_with, listed_options


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("What colour?\n(A) red\n(B) blue\n", {"A": "red", "B": "blue"}),
        ("(a) Open (b) Closed", {"A": "Open", "B": "Closed"}),
        (
            "Which?\nOptions: A: a cat., B: a dog., C: both",
            {"A": "a cat.", "B": "a dog.", "C": "both"},
        ),
        ("Find x.\nChoices:\n(A) 3\n(B) 4\n(C) 5", {"A": "3", "B": "4", "C": "5"}),
        (
            "Which?\nA. red wine\nB. blue\nC. neither",
            {"A": "red wine", "B": "blue", "C": "neither"},
        ),
        ("Which?\nA) one\nB) two", {"A": "one", "B": "two"}),
        ("Which?\nOptions:\nA. one\nB. two", {"A": "one", "B": "two"}),
    ],
)
def test_options_are_found_however_they_are_labelled(text: str, options: dict[str, str]) -> None:
    assert listed_options(text) == options


def test_a_colon_a_comma_or_a_line_break_inside_an_option_does_not_end_it() -> None:
    text = "Which?\nOptions: A: ratio 1:2, roughly, B: Vitamin B: much,\nC: first\nsecond, D: none"
    assert listed_options(text) == {
        "A": "ratio 1:2, roughly",
        "B": "Vitamin B: much",
        "C": "first\nsecond",
        "D": "none",
    }


def test_labels_of_another_style_inside_options_are_their_text() -> None:
    text = "Which figure?\nOptions: A: (a), B: (b), C: (a) and (b), D: none"
    assert listed_options(text) == {"A": "(a)", "B": "(b)", "C": "(a) and (b)", "D": "none"}


def test_an_option_may_speak_of_others_and_a_question_of_its_options() -> None:
    assert listed_options("Which?\n(A) cat\n(B) dog\n(C) both (A) and (B)") == {
        "A": "cat",
        "B": "dog",
        "C": "both (A) and (B)",
    }
    assert listed_options("Is (A) or (B) larger in (C)? (A) x (B) y (C) z") == {
        "A": "x",
        "B": "y",
        "C": "z",
    }
    assert listed_options("Which? (A) cat (B) dog (C) both (A) and (B)")["C"] == "both (A) and (B)"


def test_where_options_have_lines_of_their_own_a_label_inside_a_line_is_text() -> None:
    text = "Which?\nChoices:\n(A) neither (B) nor more\n(B) both (A) and (B)"
    assert listed_options(text) == {"A": "neither (B) nor more", "B": "both (A) and (B)"}


def test_the_last_list_counts_where_two_are_introduced() -> None:
    text = "Of its options: A. x, B. y one is taken.\nChoices:\n(A) 1\n(B) 2"
    assert listed_options(text) == {"A": "1", "B": "2"}


def test_an_instruction_below_the_options_is_no_part_of_the_last() -> None:
    text = "Which?\n(A) red\n(B) blue\nAnswer with the letter."
    assert listed_options(text) == {"A": "red", "B": "blue"}


@pytest.mark.parametrize("text", ["", "What is it?", "A cat. B-side: C.", "Only (A) one", "A: one"])
def test_a_question_without_a_list_has_no_options(text: str) -> None:
    assert listed_options(text) == {}


@pytest.mark.parametrize(
    "answer", ["C", "c", "(C)", "(c)", "C.", " C) ", "**C**", "C. blue", "(C) x", "Blue"]
)
def test_an_answer_is_the_letter_it_stands_for(answer: str) -> None:
    assert answer_letter(answer, {"A": "red", "B": "green", "C": "blue"}) == "C"


@pytest.mark.parametrize("answer", ["D", "(E)", "", "purple", "same", "Cat"])
def test_an_answer_that_is_no_option_has_no_letter(answer: str) -> None:
    assert answer_letter(answer, {"A": "red", "B": "same", "C": "same"}) is None


def test_an_instruction_is_added_once() -> None:
    assert ending_with("Q", "Do.") == "Q\nDo."
    assert ending_with("Q\nDo.", "Do.") == "Q\nDo."
