"""MMVP from its CSV file and its folder of pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmark_files import png, write_file, write_table

from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks import Scored, benchmark
from bas_opd.evaluate.benchmarks.summary import Outcome

MMVP = benchmark("mmvp")


def rows() -> list[dict[str, Any]]:
    asked = {"Question": 'Are the "wings" open, or not?', "Options": "(a) Open (b) Closed"}
    return [
        {"Index": 1, **asked, "Correct Answer": "(a)"},
        {"Index": 2, **asked, "Correct Answer": "(b)"},
        {"Index": 3, **asked, "Correct Answer": "(b)"},
    ]


def write(folder: Path, held: list[dict[str, Any]]) -> Path:
    for row in held:
        write_file(folder / f"MMVP Images/{row['Index']}.jpg", png(size=(int(row["Index"]), 1)))
    table = write_table(folder / "Questions.csv", held)
    table.write_bytes(b"\xef\xbb\xbf" + table.read_bytes())
    return folder


def test_a_row_of_the_csv_is_a_question(tmp_path: Path) -> None:
    first, second, third = MMVP.load(write(tmp_path, rows()), partial=True).questions
    assert first.prompt == 'Are the "wings" open, or not? (a) Open (b) Closed'
    assert first.options == {"A": "Open", "B": "Closed"}
    assert [each.reference for each in (first, second, third)] == ["A", "B", "B"]
    assert [each.groups["pair"] for each in (first, second, third)] == ["1", "1", "2"]
    assert second.picture() == png(size=(2, 1))


def test_the_csv_is_read_through_the_links_of_the_hubs_cache(tmp_path: Path) -> None:
    folder = tmp_path / "datasets--MMVP--MMVP/snapshots/abc"
    write(folder, rows())
    blobs = folder.parent.parent / "blobs"
    blobs.mkdir()
    for number, path in enumerate([folder / "Questions.csv", *folder.glob("MMVP Images/*")]):
        path.rename(blobs / str(number))
        path.symlink_to(blobs / str(number))
    assert [each.picture() for each in MMVP.load(folder, partial=True).questions] == [
        png(size=(n, 1)) for n in (1, 2, 3)
    ]


def test_the_index_may_be_spelt_with_a_small_l(tmp_path: Path) -> None:
    folder = write(tmp_path, rows())
    whole = MMVP.load(folder, partial=True)
    spelt = [{"lndex": row["Index"]} | row for row in rows()]
    write_table(folder / "Questions.csv", [{k: r[k] for k in r if k != "Index"} for r in spelt])
    assert MMVP.load(folder, partial=True).fingerprint == whole.fingerprint


def test_as_many_questions_without_their_pairs_are_not_the_benchmark(tmp_path: Path) -> None:
    held = [rows()[0] | {"Index": index} for index in (*range(1, 300), 301)]
    with pytest.raises(DataError, match=r"has 149 whole groups of 2 by pair, where 150"):
        MMVP.load(write(tmp_path, held))
    held[-1]["Index"] = 300
    assert not MMVP.load(write(tmp_path, held)).is_partial


def test_a_question_without_its_picture_is_refused(tmp_path: Path) -> None:
    write(tmp_path, rows())
    (tmp_path / "MMVP Images/2.jpg").unlink()
    with pytest.raises(DataError, match=r"row 2: There is no file 'MMVP Images/2.jpg'"):
        MMVP.load(tmp_path, partial=True)


def test_an_index_cannot_lead_elsewhere(tmp_path: Path) -> None:
    write_file(tmp_path / "secret.jpg", png())
    folder = write(tmp_path / "set", rows())
    write_table(folder / "Questions.csv", [rows()[0] | {"Index": "../../secret"}])
    with pytest.raises(DataError, match="leads out of the data folder"):
        MMVP.load(folder, partial=True)


@pytest.mark.parametrize("index", ["one", "0"])
def test_an_index_that_is_no_number_has_no_pair(index: str, tmp_path: Path) -> None:
    write_file(tmp_path / f"MMVP Images/{index}.jpg", png())
    write_table(tmp_path / "Questions.csv", [rows()[0] | {"Index": index}])
    with pytest.raises(DataError, match="is not a whole number from 1 on"):
        MMVP.load(tmp_path, partial=True)


def test_a_pair_counts_only_if_both_of_it_are_right() -> None:
    outcomes: list[Outcome] = ["correct", "correct", "correct", "wrong", "correct"]
    scored = [
        Scored(id=str(i + 1), outcome=outcome, groups={"pair": str(i // 2 + 1)})
        for i, outcome in enumerate(outcomes)
    ]
    summary = MMVP.summarise(scored)
    (pairs,) = summary.also
    assert (summary.primary.correct, summary.primary.n) == (4, 5)
    assert (pairs.name, pairs.correct, pairs.n) == ("pair accuracy", 1, 2)
