"""What was not run, and an evaluation that is not the run's."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_fixtures import card_of, comparison_of, page_of, words_of
from report_fixtures import evaluate, synthetic_run

from bas_opd.data.records import PreparedSet
from bas_opd.report.comparison import compare_runs
from bas_opd.report.findings import not_run, result, stale_sentence
from bas_opd.report.pages.writing import write_report
from bas_opd.report.run import read_run
from bas_opd.run.verify import verify

STALE = "of other weights than this run's model"


@pytest.fixture
def path(pictures: PreparedSet, tmp_path: Path) -> Path:
    return synthetic_run(tmp_path / "run", pictures, steps=3)


def lacking(path: Path) -> str:
    return " ".join(not_run(read_run(path), verify(path, unfinished=True, files=False)))


def test_what_is_advised_can_be_typed(path: Path) -> None:
    words = lacking(path)
    assert "on training batches; `bas-opd audit RUN` makes one" in words
    assert "on held-out batches; `bas-opd audit RUN --held-out SET` makes one" in words
    assert "No audit of the gradients; `bas-opd audit RUN`" in words
    assert "`bas-opd eval RUN --bench NAME --data FOLDER`" in words


@pytest.mark.parametrize(
    ("policy", "is_said"), [("random", True), ("learned", True), ("full", False)]
)
def test_draws_that_were_not_recomputed_are_named_where_there_are_any(
    policy: str, is_said: bool, pictures: PreparedSet, tmp_path: Path
) -> None:
    path = synthetic_run(tmp_path / policy, pictures, steps=3, policy=policy)
    assert ("`bas-opd verify RUN --draws`" in lacking(path)) is is_said


def test_no_gradients_are_missed_where_no_row_is_unselected(
    pictures: PreparedSet, tmp_path: Path
) -> None:
    path = synthetic_run(tmp_path / "full", pictures, steps=3, policy="full")
    assert "gradients" not in lacking(path)
    assert "no row was left unselected" in words_of(page_of(path))


def test_an_evaluation_of_other_weights_is_not_the_runs(
    path: Path, pictures: PreparedSet, tmp_path: Path
) -> None:
    evaluate(path, [True] * 9, weights={"model.safetensors": "f" * 64, "config.json": "0"})
    full = synthetic_run(tmp_path / "full", pictures, steps=3, policy="full")
    evaluate(full, [True, False, True] * 3)
    assert "100.0 %" not in result(read_run(path))
    assert "its evaluation is stale" in result(read_run(path))
    page, card = comparison_of(tmp_path / "out", path, full)
    assert compare_runs([read_run(path), read_run(full)]).pairs == ()
    for text in (page_of(path), card_of(path), page, card):
        assert STALE in words_of(text)
    assert "learned-25 (other weights)" in words_of(page)


def test_an_evaluation_of_the_runs_own_weights_or_of_unknown_ones_is_taken(path: Path) -> None:
    run = read_run(path)
    for weights in (None, {**run.model, "vocab.txt": "0"}, {**run.model, "config.json": "0"}):
        evaluate(path, [True] * 9, weights=weights)
        assert stale_sentence(read_run(path)) == ""
        assert STALE not in page_of(path)


def test_a_report_shows_before_and_after_where_the_base_was_asked_the_same(path: Path) -> None:
    evaluate(path, [True, True, True, False] * 10)
    assert "`bas-opd eval RUN --base --bench NAME --data FOLDER`" in lacking(path)
    evaluate(path, [True, False, False, False] * 10, out="eval-base")
    said = result(read_run(path))
    assert "reaches 75.0 % (mean of kinds, 95 % CI " in said
    assert ", from 25.0 % of its base (+50.0 points, 95 % CI " in said
    assert "--base" not in lacking(path)
    page = words_of(page_of(path))
    assert said in page
    assert "; its base 25.0 %; all questions 75.0 %" in page
    assert "FineSearch, mean of kinds 25.0 % 75.0 % +50.0 +" in page
    assert "accuracy, kind count 50.0 % 100.0 % +50.0" in page
    assert "| FineSearch, mean of kinds | 25.0 % | 75.0 % | +50.0 |" in card_of(path)


def test_a_base_that_was_asked_other_questions_is_not_before(path: Path) -> None:
    evaluate(path, [True, True, False, False])
    evaluate(path, [True] * 8, out="eval-base", questions="others")
    assert read_run(path).before is None
    assert "from 100.0 %" not in result(read_run(path))
    assert "the base model was asked other questions" in lacking(path)


def test_a_learning_policy_that_ranked_nothing_is_named_first(
    pictures: PreparedSet, tmp_path: Path
) -> None:
    silent = synthetic_run(tmp_path / "silent", pictures, steps=1)
    remark = "The learned policy ranked no row: it learns from 8 labels on"
    assert remark in write_report(silent, tmp_path / "out").sentence
    assert remark in words_of(page_of(silent)).partition("teacher calls")[0]
    assert f"**{remark}" in card_of(silent)
    other = synthetic_run(tmp_path / "other", pictures)
    page, card = comparison_of(tmp_path / "both", silent, other)
    assert f"silent: {remark}" in words_of(page)
    assert f"**silent: {remark}" in card


def test_a_card_shows_names_in_code_as_they_are_typed(path: Path) -> None:
    assert "(`run.keep_every`)" in card_of(path)
