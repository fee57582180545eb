"""Rollouts to look at: their texts, and where their pictures come from."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_fixtures import page_of, words_of
from report_fixtures import synthetic_run
from shapes import make_pictures

from bas_opd.data.records import PreparedSet
from bas_opd.errors import DataError
from bas_opd.report.pages.examples import training_set
from bas_opd.report.pages.templates import LONGEST
from bas_opd.report.pages.writing import write_report
from bas_opd.report.run import read_run


def test_a_huge_text_is_cut_and_what_is_left_out_is_counted(
    pictures: PreparedSet, tmp_path: Path
) -> None:
    word = "word " * 60_000
    huge = {"question": word, "answer": word, "response": word}
    run = synthetic_run(tmp_path / "run", pictures, steps=2, texts=huge)
    page = page_of(run)
    articles = page.count("<article>")
    assert articles > 1
    assert page.count(f"… ({300_000 - LONGEST:,} more characters)") == 3 * articles
    assert len(words_of(page)) < 3 * LONGEST * articles + 15_000


def test_a_text_that_fits_is_whole(pictures: PreparedSet, tmp_path: Path) -> None:
    run = synthetic_run(tmp_path / "run", pictures, steps=2, texts={"response": "x" * LONGEST})
    page = page_of(run)
    assert "x" * LONGEST in page
    assert "more character" not in page


def test_a_set_that_moved_is_found_where_it_is_said_to_be(tmp_path: Path) -> None:
    data = make_pictures(tmp_path / "data", n=24, seed=3)
    path = synthetic_run(tmp_path / "run", data, steps=3)
    moved = (tmp_path / "data").rename(tmp_path / "elsewhere")
    assert "data:image/jpeg" not in page_of(path)
    page = write_report(path, path, data=moved).page.read_text(encoding="utf-8")
    assert "data:image/jpeg" in page
    assert "Which kinds of question" in page


def test_another_set_than_the_one_trained_on_is_refused(
    pictures: PreparedSet, tmp_path: Path
) -> None:
    run = read_run(synthetic_run(tmp_path / "run", pictures, steps=3))
    other = make_pictures(tmp_path / "other", n=12, seed=4).folder
    with pytest.raises(DataError, match=r"is not the set that the run in .* was trained on"):
        training_set(run, other)
    with pytest.raises(DataError):
        training_set(run, tmp_path / "nothing")
