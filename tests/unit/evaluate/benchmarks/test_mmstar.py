"""MMStar: both ways in which its questions list their options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmark_files import base64_of, png, write_parquet, write_table

from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks import benchmark

MMSTAR = benchmark("mmstar")
INLINE = "Which is right?\nOptions: A: The cat: asleep., B: Two\nlines, C: None, D: All"
BELOW = "Hint: Answer with a letter, e.g., A, B, C, D.\nQuestion: Find x.\nChoices:\n(A) 3\n(B) 4"


def rows() -> list[dict[str, Any]]:
    return [
        {"index": 0, "question": INLINE, "answer": "D", "category": "math", "l2_category": "x"},
        {"index": 1, "question": BELOW, "answer": "B", "category": "logic", "l2_category": "y"},
    ]


def parquet(folder: Path) -> Path:
    held = [row | {"image": png(), "meta_info": {"source": "s"}} for row in rows()]
    write_parquet(folder / "mmstar.parquet", held)
    return folder


def tsv(folder: Path) -> Path:
    held = [row | {"image": base64_of(png())} for row in rows()]
    write_table(folder / "MMStar.tsv", held, delimiter="\t")
    return folder


@pytest.mark.parametrize("layout", [parquet, tsv])
def test_both_formats_of_options_are_read_and_the_question_is_asked_as_stored(
    layout: Any, tmp_path: Path
) -> None:
    first, second = MMSTAR.load(layout(tmp_path), partial=True).questions
    assert (first.prompt, second.prompt) == (INLINE, BELOW)
    assert first.options == {"A": "The cat: asleep.", "B": "Two\nlines", "C": "None", "D": "All"}
    assert second.options == {"A": "3", "B": "4"}
    assert (first.reference, second.reference) == ("D", "B")
    assert (first.id, second.groups) == ("0", {"category": "logic"})
    assert first.picture() == png()


def test_a_question_whose_options_cannot_be_found_is_refused_with_its_row(tmp_path: Path) -> None:
    held = [row | {"image": png(), "question": "Which?"} for row in rows()]
    write_parquet(tmp_path / "mmstar.parquet", held)
    with pytest.raises(DataError, match=r"mmstar.parquet, row 1: Its answer 'D' is none of its"):
        MMSTAR.load(tmp_path, partial=True)
