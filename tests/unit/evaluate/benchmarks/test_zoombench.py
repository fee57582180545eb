"""ZoomBench in both of its sets of columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmark_files import png, stored, write_parquet

from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks import Scored, benchmark

ZOOMBENCH = benchmark("zoombench")
CHOICE = "<image>What does the sign say?\nA. STOP\nB. GO\nC. SLOW"
OPEN = "How many windows has the house?"


def write(folder: Path, question: str, answer: str, **columns: Any) -> Path:
    rows = [
        {question: CHOICE, answer: "B", "dimension": "reading"},
        {question: OPEN, answer: "4", "dimension": "counting"},
    ]
    pictures = {"image": stored(png("red")), "crop_image": stored(b"not a picture at all")}
    write_parquet(folder / "data/test.parquet", [row | pictures | columns for row in rows])
    return folder


@pytest.mark.parametrize("columns", [("query", "response"), ("prompt", "answer")])
def test_both_sets_of_columns_ask_the_same(columns: tuple[str, str], tmp_path: Path) -> None:
    choice, free = ZOOMBENCH.load(write(tmp_path, *columns), partial=True).questions
    assert choice.prompt == "What does the sign say?\nA. STOP\nB. GO\nC. SLOW"
    assert (choice.form, choice.reference) == ("choice", "B")
    assert choice.options == {"A": "STOP", "B": "GO", "C": "SLOW"}
    assert (free.form, free.reference, free.prompt, free.options) == ("short", "4", OPEN, {})
    assert (choice.id, free.id) == ("test-1", "test-2")
    assert choice.groups == {"form": "multiple choice", "dimension": "reading"}
    assert free.groups == {"form": "open", "dimension": "counting"}


def test_the_picture_is_the_full_one_and_the_crop_is_not_looked_at(tmp_path: Path) -> None:
    folder = write(tmp_path, "query", "response")
    assert {each.picture() for each in ZOOMBENCH.load(folder, partial=True).questions} == {
        png("red")
    }


def test_a_letter_without_options_is_a_short_answer(tmp_path: Path) -> None:
    row = {"query": "Which letter is on the door?", "response": "B", "image": stored(png())}
    write_parquet(tmp_path / "data/test.parquet", [row])
    (question,) = ZOOMBENCH.load(tmp_path, partial=True).questions
    assert (question.form, question.reference) == ("short", "B")


def test_an_answer_that_is_none_of_the_listed_things_is_a_short_one(tmp_path: Path) -> None:
    row = {"query": CHOICE, "response": "HALT", "image": stored(png())}
    write_parquet(tmp_path / "data/test.parquet", [row])
    (question,) = ZOOMBENCH.load(tmp_path, partial=True).questions
    assert (question.form, question.reference, question.options) == ("short", "HALT", {})


def test_another_set_of_columns_is_refused_with_those_that_were_found(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"^\S+test.parquet: There is no column query or prompt, only task, response",
    ):
        ZOOMBENCH.load(write(tmp_path, "task", "response"), partial=True)


def test_results_by_judge_and_by_rule_alone_are_separate() -> None:
    summary = ZOOMBENCH.summarise(
        [
            Scored(id="1", outcome="correct", groups={"form": "multiple choice"}),
            Scored(id="2", outcome="correct", source="judge", groups={"form": "open"}),
            Scored(id="3", outcome="unscored", source="judge", groups={"form": "open"}),
            Scored(id="4", outcome="wrong", groups={"form": "open"}),
        ]
    )
    assert (summary.primary.value, summary.rule_only.value) == (0.5, 0.25)
    assert (summary.deferral_rate, summary.unscored_rate) == (0.5, 0.25)
    assert {each.part: each.correct for each in summary.also} == {"multiple choice": 1, "open": 1}


def test_a_multiple_choice_whose_options_cannot_be_read_is_refused(tmp_path: Path) -> None:
    row = {"query": "Which sign? one; two", "response": "B", "image": stored(png())}
    write_parquet(tmp_path / "data/test.parquet", [row | {"question_type": "MCQ"}])
    with pytest.raises(DataError, match=r"row 1: It is a multiple choice, but its answer 'B' is"):
        ZOOMBENCH.load(tmp_path, partial=True)


def test_two_groups_with_a_part_of_one_name_stay_separate() -> None:
    groups = {"form": "open", "question_type": "open"}
    summary = ZOOMBENCH.summarise([Scored(id="1", outcome="correct", groups=groups)])
    assert [each.label for each in summary.also] == [
        "accuracy, form open",
        "accuracy, question_type open",
    ]
