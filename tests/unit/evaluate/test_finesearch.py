"""What counts as a right answer."""

from __future__ import annotations

import pytest

from bas_opd.evaluate.finesearch import grade


@pytest.mark.parametrize(
    "output",
    [
        "red",
        "Red",
        "RED.",
        "The plate is red.",
        "I see a red plate. The answer is red.",
        "red .",
        " red\n",
        "It is “red” no: 'red'!",
    ],
)
def test_a_response_that_ends_with_the_answer_is_right(output: str) -> None:
    assert grade(output, "red")


@pytest.mark.parametrize(
    "output",
    [
        "",
        "  ",
        ".",
        "blue",
        "red or blue",
        "It is red, I think",
        "redder",
        "infrared",
        "re d",
        "red-blue",
        "The answer is: red plate.",
    ],
)
def test_a_response_that_ends_otherwise_is_wrong(output: str) -> None:
    assert not grade(output, "red")


def test_a_number_is_its_digits_and_nothing_else() -> None:
    assert grade("There are 3.", "3")
    assert not grade("There are 33.", "3")
    assert not grade("There are three.", "3")


def test_the_case_of_the_answer_does_not_matter() -> None:
    assert grade("yes", "Yes")
