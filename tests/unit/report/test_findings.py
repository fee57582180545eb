"""What was not run, and an evaluation that is not the run's."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_fixtures import card_of, comparison_of, page_of, words_of
from report_fixtures import evaluate, synthetic_run

from bas_opd.data.records import PreparedSet
from bas_opd.report.comparison import compare_runs
from bas_opd.report.findings import budget_sentence, not_run, result, stale_sentence
from bas_opd.report.pages.writing import write_report
from bas_opd.report.run import read_run
from bas_opd.run.verify import verify
from bas_opd.serving.request_journal import RequestJournal

LIMITS = "K limits the selected rows; teacher.retries limits the requests beyond one for each"
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


def ask(path: Path, *, beyond: int = 0, stored: int = 0) -> int:
    """Note requests for the selected rows of a run, and return how many rows those are.

    In the first step `beyond` more are sent, and `stored` rows need none.
    """
    journal = RequestJournal.resume(path / "teacher" / "requests.jsonl")
    steps = read_run(path).queries
    for step in steps:
        for place, row in enumerate(step.selected):
            is_stored = step.step == 0 and place < stored
            journal.write(step.step, row, f"content {row}", 0 if is_stored else 9)
    for _ in range(beyond):
        journal.write(0, steps[0].selected[-1], "content", 9)
    journal.write(len(steps), 0, "content", 9)  # of a step that is not on record yet
    return sum(len(step.selected) for step in steps)


@pytest.mark.parametrize(
    ("beyond", "stored", "then"),
    [
        (0, 0, ""),
        (2, 0, f" {LIMITS}, here 2."),
        (0, 1, ""),
    ],
)
def test_requests_to_a_server_are_counted_apart_from_rows(
    beyond: int, stored: int, then: str, pictures: PreparedSet, tmp_path: Path
) -> None:
    served = {"teacher": {"server": "http://localhost:1/v1", "model": "big"}}
    path = synthetic_run(tmp_path / "served", pictures, steps=3, settings=served)
    assert "equests" not in budget_sentence(read_run(path))
    rows = ask(path, beyond=beyond, stored=stored)
    sent = rows + beyond - stored
    said = f" Requests are counted apart: {sent} requests for {rows} selected rows."
    assert budget_sentence(read_run(path)).endswith(f"teacher is asked anything.{said}{then}")
    assert f"{said}{then}" in words_of(page_of(path))
    assert f"{said}{then}" in card_of(path)
    own = synthetic_run(tmp_path / "own", pictures, steps=3, policy="random")
    assert budget_sentence(read_run(own)).endswith("the teacher is asked anything.")
    assert f"{said}{then}" in words_of(comparison_of(tmp_path / "both", path, own)[0])


def test_a_page_names_another_teacher_and_no_folder_of_its_writer(
    path: Path, pictures: PreparedSet, tmp_path: Path
) -> None:
    after = words_of(page_of(path)).partition("base model")[2]
    assert " teacher " not in after.partition(" data ")[0]
    folder = {"teacher": {"path": "/home/someone/models/big"}}
    other = synthetic_run(tmp_path / "other", pictures, steps=3, settings=folder)
    served = {"teacher": {"server": "http://localhost:1/v1", "model": "big"}}
    third = synthetic_run(tmp_path / "third", pictures, steps=3, settings=served)
    assert "teacher …/models/big, another model" in words_of(page_of(other))
    assert "teacher big, behind a server" in words_of(page_of(third))
    for text in (page_of(other), card_of(other), *comparison_of(tmp_path / "out", path, other)):
        assert "someone" not in text
