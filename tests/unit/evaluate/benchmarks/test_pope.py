"""POPE: three splits, in three layouts, and five numbers of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmark_files import png, stored, write_file, write_lines, write_parquet

from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks import Scored, benchmark

POPE = benchmark("pope")
SPLITS = ("adversarial", "popular", "random")
PROMPT = "Is there a hat in the image?\nAnswer the question using a single word or phrase."


def row(number: int, **more: Any) -> dict[str, Any]:
    answer = "yes" if number % 2 else "no"
    question = "Is there a hat in the image?"
    return {"question_id": str(number), "question": question, "answer": answer, **more}


def together(folder: Path) -> Path:
    held = [
        row(number, category=split, image=stored(png())) for split in SPLITS for number in (1, 2)
    ]
    write_parquet(folder / "data/test-00000-of-00002.parquet", held[:3])
    write_parquet(folder / "data/test-00001-of-00002.parquet", held[3:])
    write_parquet(folder / "Full/random-00000-of-00001.parquet", [row(1, image=stored(png()))])
    return folder


def apart(folder: Path) -> Path:
    for split in SPLITS:
        held = [row(number, image=stored(png())) for number in (1, 2)]
        write_parquet(folder / f"Full/{split}-00000-of-00001.parquet", held)
    return folder


def original(folder: Path) -> Path:
    for split in SPLITS:
        held = [row(number, image="COCO_val2014_1.jpg") for number in (1, 2)]
        for each in held:
            each["text"], each["label"] = each.pop("question"), each.pop("answer")
        write_lines(folder / f"coco_pope_{split}.json", held)
    write_file(folder / "val2014/COCO_val2014_1.jpg", png())
    return folder


@pytest.mark.parametrize("layout", [together, apart, original])
def test_all_three_splits_are_asked_once_in_every_layout(layout: Any, tmp_path: Path) -> None:
    questions = POPE.load(layout(tmp_path), partial=True).questions
    assert [each.id for each in questions] == [f"{split}/{n}" for split in SPLITS for n in (1, 2)]
    assert {each.prompt for each in questions} == {PROMPT}
    assert [each.reference for each in questions] == ["yes", "no"] * 3
    assert questions[0].form == "yes_no"
    assert questions[4].groups == {"split": "random", "label": "yes"}
    assert questions[5].picture() == png()


def test_an_old_copy_lacks_random_questions_and_is_refused_with_both_numbers(
    tmp_path: Path,
) -> None:
    for split in SPLITS:
        number = 2910 if split == "random" else 3000
        held = [row(n, image="1.jpg") for n in range(number)]
        for each in held:
            each["text"], each["label"] = each.pop("question"), each.pop("answer")
        write_lines(tmp_path / f"coco_pope_{split}.json", held)
    write_file(tmp_path / "val2014/1.jpg", png())
    with pytest.raises(DataError) as caught:
        POPE.load(tmp_path)
    assert "has 8,910 questions, where 9,000 were expected" in str(caught.value)
    assert "has 2,910 of random split, where 3,000 were expected" in str(caught.value)
    loaded = POPE.load(tmp_path, partial=True)
    assert (len(loaded), loaded.is_partial) == (8910, True)


@pytest.mark.parametrize(
    ("more", "message"),
    [({"answer": "maybe"}, "neither yes nor no"), ({"category": "hard"}, "split 'hard' is none")],
)
def test_an_answer_or_split_that_is_none_is_refused(
    more: dict[str, Any], message: str, tmp_path: Path
) -> None:
    held = row(1, category="random", image=stored(png())) | more
    write_parquet(tmp_path / "data/test.parquet", [held])
    with pytest.raises(DataError, match=message):
        POPE.load(tmp_path, partial=True)


def test_the_five_numbers_of_a_split() -> None:
    """Of 4 where yes is right 2 are hit, 1 says no, 1 says nothing; of 4 others 1 says yes."""
    samples: list[tuple[str, Any, Any, str]] = [
        ("yes", "correct", "rule", "yes"),
        ("yes", "correct", "judge", ""),
        ("yes", "wrong", "rule", "no"),
        ("yes", "unscored", "judge", ""),
        ("no", "wrong", "rule", "yes"),
        ("no", "wrong", "rule", ""),
        ("no", "correct", "rule", "no"),
        ("no", "correct", "judge", ""),
    ]
    scored = [
        Scored(
            id=str(i),
            outcome=outcome,
            source=source,
            value=value,
            groups={"split": "random", "label": label},
        )
        for i, (label, outcome, source, value) in enumerate(samples)
    ]
    summary = POPE.summarise(scored)
    assert {each.part for each in summary.also} == {"random"}
    assert {each.name: each.value for each in summary.also} == {
        "accuracy": 4 / 8,
        "precision": pytest.approx(2 / 3),
        "recall": 2 / 4,
        "F1": pytest.approx(2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4)),
        "yes ratio": 3 / 8,
    }
    assert (summary.primary.value, summary.rule_only.value) == (4 / 8, 2 / 8)


def test_precision_without_a_yes_is_undefined_and_not_nought() -> None:
    scored = [Scored(id="1", outcome="correct", groups={"split": "random", "label": "no"})]
    numbers = {each.name: each.value for each in POPE.summarise(scored).also}
    assert numbers == {"accuracy": 1, "precision": None, "recall": None, "F1": None, "yes ratio": 0}
