"""HR-Bench 4K: four turns of every question, in parquet and in TSV."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from benchmark_files import base64_of, png, write_parquet, write_table

from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks import Scored, benchmark

HRBENCH = benchmark("hrbench4k")
TEXTS = ["red", "blue", "green, mostly", 'a "white" one']


def rows(pictures: int = 2) -> list[dict[str, Any]]:
    """One question on some pictures, its options turned by one from cycle to cycle."""
    return [
        {
            "index": cycle * pictures + picture,
            "question": "What colour has\tthe hat?",
            "answer": "ABCD"[(-cycle) % 4],
            **{letter: TEXTS[(place + cycle) % 4] for place, letter in enumerate("ABCD")},
            "category": "single" if picture == 0 else "cross",
            "cycle_category": f"cycle_{cycle}",
            "image": base64_of(png(["red", "blue"][picture % 2])),
        }
        for cycle in range(4)
        for picture in range(pictures)
    ]


def parquet(folder: Path, held: list[dict[str, Any]]) -> Path:
    write_parquet(folder / "hr_bench_4k.parquet", held)
    return folder


def tsv(folder: Path, held: list[dict[str, Any]]) -> Path:
    write_table(folder / "hr_bench_4k.tsv", held, delimiter="\t")
    return folder


@pytest.mark.parametrize("layout", [parquet, tsv])
def test_every_turn_is_a_question_of_its_own(layout: Any, tmp_path: Path) -> None:
    questions = HRBENCH.load(layout(tmp_path, rows()), partial=True).questions
    assert [each.id for each in questions[:3]] == ["cycle_0/0", "cycle_0/1", "cycle_1/2"]
    assert questions[2].prompt == (
        "What colour has\tthe hat? Select from the following choices.\n"
        '(A) blue\n(B) green, mostly\n(C) a "white" one\n(D) red'
    )
    assert {each.options[each.reference] for each in questions} == {"red"}
    assert questions[1].picture() == png("blue")
    assert questions[6].picture() == png("red")


@pytest.mark.parametrize("order", ["by cycle", "by question"])
def test_the_turns_of_a_question_belong_together_even_if_pictures_share_its_words(
    order: str, tmp_path: Path
) -> None:
    held = rows(pictures=3)
    if order == "by question":
        held = sorted(held, key=lambda row: row["index"] % 3)
    questions = HRBENCH.load(parquet(tmp_path, held), partial=True).questions
    turns: dict[str, set[int]] = {}
    for each in questions:
        turns.setdefault(each.groups["question"], set()).add(int(each.id.split("/")[1]) % 3)
    assert sorted(map(sorted, turns.values())) == [[0], [1], [2]]
    assert set(Counter(each.groups["question"] for each in questions).values()) == {4}


def test_a_question_may_have_fewer_options(tmp_path: Path) -> None:
    held = [rows()[0] | {"C": None, "D": None}]
    (question,) = HRBENCH.load(parquet(tmp_path, held), partial=True).questions
    assert question.options == {"A": "red", "B": "blue"}
    assert question.prompt.endswith("choices.\n(A) red\n(B) blue")


def test_an_answer_without_its_option_is_refused(tmp_path: Path) -> None:
    held = [rows()[0] | {"A": ""}]
    with pytest.raises(DataError, match=r"row 1: Its answer 'A' is none of its options"):
        HRBENCH.load(tsv(tmp_path, held), partial=True)


def test_the_numbers_of_cycles_and_categories() -> None:
    def turn(name: str, cycle: int, is_right: bool, category: str) -> Scored:
        groups = {"question": name, "cycle": str(cycle), "category": category}
        outcome = "correct" if is_right else "wrong"
        return Scored(id=f"{name}{cycle}", outcome=outcome, groups=groups)

    scored = [
        *(turn("q", cycle, True, "single") for cycle in range(4)),
        *(turn("r", cycle, cycle > 0, "cross") for cycle in range(4)),
        turn("s", 0, True, "cross"),
    ]
    summary = HRBENCH.summarise(scored)
    numbers = {each.label: (each.correct, each.n) for each in summary.also}
    assert (summary.primary.correct, summary.primary.n) == (8, 9)
    assert numbers == {
        "FSP": (4, 4),
        "FCP": (4, 5),
        "accuracy, cycle 0": (2, 3),
        "accuracy, cycle 1": (2, 2),
        "accuracy, cycle 2": (2, 2),
        "accuracy, cycle 3": (2, 2),
        "all four right": (1, 2),
    }


def test_as_many_questions_in_other_cycles_are_not_the_benchmark(tmp_path: Path) -> None:
    held = rows(pictures=200)
    assert not HRBENCH.load(parquet(tmp_path / "whole", held)).is_partial
    moved = [*held[:-1], held[-1] | {"cycle_category": "cycle_0"}]
    parquet(tmp_path / "moved", moved)
    with pytest.raises(DataError, match=r"has 2 whole groups of 200 by cycle, where 4"):
        HRBENCH.load(tmp_path / "moved")
