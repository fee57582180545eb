"""V*Bench in both of its published layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmark_files import png, stored, write_file, write_lines, write_parquet

from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks import Scored, benchmark
from bas_opd.evaluate.benchmarks.summary import Outcome

TAIL = "\nAnswer with the option's letter from the given choices directly."
FOUR = "What is the material of the glove?\n(A) rubber\n(B) cotton\n(C) kevlar\n(D) leather"
TWO = "Is the dog on the left or right side of the car?\n(A) right\n(B) left"
VSTAR = benchmark("vstar")


def rows() -> list[dict[str, Any]]:
    return [
        {
            "image": "direct_attributes/sa_1.png",
            "text": FOUR + TAIL,
            "category": "direct_attributes",
            "label": "A",
            "question_id": 0,
        },
        {
            "image": "relative_position/sa_2.png",
            "text": TWO,
            "category": "relative_position",
            "label": "B",
            "question_id": 0,
        },
    ]


def in_folders(folder: Path) -> Path:
    write_file(folder / "direct_attributes/sa_1.png", png("red"))
    write_file(folder / "relative_position/sa_2.png", png("blue"))
    write_lines(folder / "test_questions.jsonl", rows())
    return folder


def in_parquet(folder: Path) -> Path:
    pictures = (stored(png("red")), stored(png("blue")))
    held = [row | {"image": picture} for row, picture in zip(rows(), pictures, strict=True)]
    write_parquet(folder / "data/test-00000-of-00001.parquet", held)
    return folder


@pytest.mark.parametrize("layout", [in_folders, in_parquet])
def test_both_layouts_ask_the_same(layout: Any, tmp_path: Path) -> None:
    first, second = VSTAR.load(layout(tmp_path), partial=True).questions
    assert (first.id, second.id) == ("direct_attributes/0", "relative_position/0")
    assert first.prompt == FOUR + TAIL
    assert first.options == {"A": "rubber", "B": "cotton", "C": "kevlar", "D": "leather"}
    assert (first.form, first.reference) == ("choice", "A")
    assert first.groups == {"category": "direct_attributes"}
    assert (first.picture(), second.picture()) == (png("red"), png("blue"))


def test_a_row_with_two_options_and_without_the_instruction_gets_the_instruction(
    tmp_path: Path,
) -> None:
    _, second = VSTAR.load(in_folders(tmp_path), partial=True).questions
    assert second.prompt == TWO + TAIL
    assert second.options == {"A": "right", "B": "left"}
    assert second.reference == "B"


def test_a_label_that_is_no_option_is_refused_with_its_row(tmp_path: Path) -> None:
    in_folders(tmp_path)
    write_lines(tmp_path / "test_questions.jsonl", [rows()[0], rows()[1] | {"label": "C"}])
    with pytest.raises(DataError, match=r"test_questions.jsonl, row 2: Its label 'C' is none"):
        VSTAR.load(tmp_path, partial=True)


def test_the_number_is_over_all_rows_and_categories_stand_beside_it() -> None:
    samples: list[tuple[Outcome, str]] = [
        ("correct", "direct_attributes"),
        ("correct", "direct_attributes"),
        ("wrong", "direct_attributes"),
        ("unscored", "relative_position"),
    ]
    scored = [
        Scored(id=str(i), outcome=outcome, groups={"category": category})
        for i, (outcome, category) in enumerate(samples)
    ]
    summary = VSTAR.summarise(scored)
    assert summary.primary.value == 0.5
    assert [(each.part, each.value, each.n) for each in summary.also] == [
        ("direct_attributes", pytest.approx(2 / 3), 3),
        ("relative_position", 0.0, 1),
    ]
    assert (summary.expected, summary.is_partial) == (191, True)
