"""CV-Bench: two to six options, from parquet and from JSON lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmark_files import png, stored, write_file, write_lines, write_parquet

from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks import Scored, benchmark

CVBENCH = benchmark("cvbench")


def row(kind: str, number: int, choices: list[str], answer: str) -> dict[str, Any]:
    listed = "".join(f"\n({letter}) {text}" for letter, text in zip("ABCDEF", choices))  # noqa: B905
    return {
        "idx": number,
        "type": kind,
        "task": "Count",
        "question": "How many hats?",
        "choices": choices,
        "answer": answer,
        "prompt": f"How many hats? Select from the following choices.{listed}",
        "source": "COCO" if kind == "2D" else "Omni3D",
        "filename": f"{kind}/{number}.png",
    }


def rows() -> dict[str, list[dict[str, Any]]]:
    return {
        "2d": [
            row("2D", 0, ["1", "2"], "(B)"),
            row("2D", 1, ["0", "1", "2", "3", "4", "5"], "(F)"),
        ],
        "3d": [row("3D", 0, ["sofa", "box", "lamp"], "(C)")],
    }


def parquet(folder: Path) -> Path:
    for split, held in rows().items():
        pictures = [each | {"image": stored(png(size=(2, each["idx"] + 1)))} for each in held]
        write_parquet(folder / f"test_{split}.parquet", pictures)
    return folder


def lines(folder: Path) -> Path:
    for split, held in rows().items():
        write_lines(folder / f"test_{split}.jsonl", held)
        for each in held:
            write_file(folder / "img" / each["filename"], png(size=(2, each["idx"] + 1)))
    return folder


@pytest.mark.parametrize("layout", [parquet, lines])
def test_both_layouts_ask_the_same(layout: Any, tmp_path: Path) -> None:
    two, six, three = CVBENCH.load(layout(tmp_path), partial=True).questions
    assert two.prompt == "How many hats? Select from the following choices.\n(A) 1\n(B) 2"
    assert (two.reference, six.reference, three.reference) == ("B", "F", "C")
    assert list(six.options) == list("ABCDEF")
    assert (two.id, six.id, three.id) == ("2D/0", "2D/1", "3D/0")
    assert three.groups == {"type": "3D", "task": "Count", "source": "Omni3D"}
    assert six.picture() == png(size=(2, 2))


def test_a_stored_prompt_that_says_more_is_kept_and_one_of_another_form_is_not(
    tmp_path: Path,
) -> None:
    held = [row("2D", number, ["1", "2"], "(A)") | {"image": stored(png())} for number in (0, 1)]
    more = str(held[0]["prompt"]).replace("hats?", "hats in the red box?")
    prompts = [held[0] | {"prompt": more}, held[1] | {"prompt": "Say a number."}]
    write_parquet(tmp_path / "test_2d.parquet", prompts)
    first, second = CVBENCH.load(tmp_path, partial=True).questions
    assert first.prompt == more
    assert second.prompt == held[1]["prompt"]


def test_a_fingerprint_changes_with_what_aggregates_go_by(tmp_path: Path) -> None:
    before = CVBENCH.load(lines(tmp_path), partial=True).fingerprint
    write_lines(tmp_path / "test_3d.jsonl", [rows()["3d"][0] | {"task": "Depth"}])
    assert CVBENCH.load(tmp_path, partial=True).fingerprint != before


@pytest.mark.parametrize("choices", [["1"], list("1234567")])
def test_other_than_two_to_six_options_are_refused(choices: list[str], tmp_path: Path) -> None:
    held = row("2D", 0, choices, "(A)") | {"image": stored(png())}
    write_parquet(tmp_path / "test_2d.parquet", [held])
    with pytest.raises(DataError, match="not a list of two to 6 options"):
        CVBENCH.load(tmp_path, partial=True)


def test_the_three_ways_to_count_differ_as_they_should() -> None:
    """2D: ADE20K 1 of 1, COCO 1 of 4; 3D: 1 of 2."""

    def some(source: str, kind: str, right: int, n: int) -> list[Scored]:
        groups = {"source": source, "type": kind, "task": "t"}
        return [
            Scored(id=f"{source}{i}", outcome="correct" if i < right else "wrong", groups=groups)
            for i in range(n)
        ]

    scored = some("ADE20K", "2D", 1, 1) + some("COCO", "2D", 1, 4) + some("Omni3D", "3D", 1, 2)
    summary = CVBENCH.summarise(scored)
    numbers = {each.name: each.value for each in summary.also if not each.part}
    assert summary.primary.value == pytest.approx((2 / 5 + 1 / 2) / 2)
    assert numbers["official"] == pytest.approx(((1 + 1 / 4) / 2 + 1 / 2) / 2)
    assert numbers["all questions"] == pytest.approx(3 / 7)
    assert {each.part: each.n for each in summary.also if each.part} == {
        "2D": 5,
        "3D": 2,
        "t": 7,
        "ADE20K": 1,
        "COCO": 4,
        "Omni3D": 2,
    }


def test_without_3d_there_is_no_mean_of_both() -> None:
    only = [Scored(id="1", outcome="correct", groups={"type": "2D", "source": "COCO"})]
    summary = CVBENCH.summarise(only)
    assert summary.primary.value is None
    assert {each.name: each.value for each in summary.also if not each.part} == {
        "all questions": 1.0,
        "official": None,
    }
