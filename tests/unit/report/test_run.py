"""What a reader makes of a run directory, whole, half written or spoilt."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_fixtures import audit, audit_gradients, evaluate, synthetic_run
from run_fixtures import events_of, rewrite

from bas_opd.data.records import PreparedSet
from bas_opd.errors import DataError
from bas_opd.report.run import read_run
from bas_opd.run.verify import verify


def test_a_run_is_read_from_its_records(pictures: PreparedSet, tmp_path: Path) -> None:
    path = synthetic_run(tmp_path / "run", pictures, steps=4)
    run = read_run(path)
    assert (run.policy, run.name, run.planned_steps) == ("learned-25", "run", 4)
    assert run.is_finished
    assert run.totals == events_of(path)[-1]["totals"]
    assert run.steps[0].loss == 0.1
    assert len(run.shown) == 8
    assert run.evaluation is run.geometry is None
    assert verify(path).is_sound


def test_what_was_evaluated_and_audited_is_found(pictures: PreparedSet, tmp_path: Path) -> None:
    path = synthetic_run(tmp_path / "run", pictures, steps=3)
    evaluate(path, [True, True, False, True], judged=1)
    audit(path, source="held-out")
    audit_gradients(path)
    run = read_run(path)
    assert run.evaluation is not None
    result = run.evaluation.results[0]
    assert (result.title, result.summary.deferred, result.summary.unscored) == ("FineSearch", 1, 1)
    assert [each.is_correct for each in result.scored] == [True, True, False, False]
    assert [each.source for each in run.utility_audits] == ["held-out"]
    assert run.geometry is not None


def test_a_line_that_is_being_written_is_left_out(pictures: PreparedSet, tmp_path: Path) -> None:
    path = synthetic_run(tmp_path / "run", pictures, steps=3, planned=9)
    with (path / "records.jsonl").open("ab") as file:
        file.write(b'{"schema_version":1,"event":"st')
    run = read_run(path)
    assert (len(run.steps), run.planned_steps, run.is_finished) == (3, 9, False)


def test_a_resumed_run_has_the_plan_it_was_resumed_with(
    pictures: PreparedSet, tmp_path: Path
) -> None:
    path = synthetic_run(tmp_path / "run", pictures, steps=3, planned=9)
    rewrite(path, [*events_of(path), {"event": "resumed", "step": 3, "steps": 12}])
    run = read_run(path)
    assert (run.planned_steps, run.resumed) == (12, (3,))


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no run in .*no records\.jsonl"):
        read_run(tmp_path)
    (tmp_path / "records.jsonl").write_text("")
    with pytest.raises(DataError, match="no complete line yet"):
        read_run(tmp_path)


def test_the_records_of_a_dataset_are_no_run(pictures: PreparedSet) -> None:
    with pytest.raises(DataError, match="is a prepared set, not a run"):
        read_run(pictures.folder)


def test_a_changed_line_is_refused_and_named(pictures: PreparedSet, tmp_path: Path) -> None:
    path = synthetic_run(tmp_path / "run", pictures, steps=3)
    records = path / "records.jsonl"
    records.write_bytes(records.read_bytes().replace(b'"calls":', b'"calls": ', 1))
    read_run(path)  # Blanks change nothing that was said.
    records.write_bytes(records.read_bytes().replace(b'"learned":false', b'"learned":true', 1))
    with pytest.raises(DataError, match=r"records\.jsonl:2 does not follow"):
        read_run(path)


def test_a_step_that_lacks_a_field_is_refused_with_where_to_look(
    pictures: PreparedSet, tmp_path: Path
) -> None:
    path = synthetic_run(tmp_path / "run", pictures, steps=3)
    events = events_of(path)
    del events[2]["budget"]
    rewrite(path, events)
    with pytest.raises(DataError, match=r"step 1: budget is missing.*bas-opd verify"):
        read_run(path)


def test_settings_of_another_version_are_refused(pictures: PreparedSet, tmp_path: Path) -> None:
    path = synthetic_run(tmp_path / "run", pictures, steps=3)
    events = events_of(path)
    events[0]["config"]["select"]["magic"] = 1
    rewrite(path, events)
    with pytest.raises(DataError, match=r"select\.magic"):
        read_run(path)


def test_a_damaged_evaluation_is_named(pictures: PreparedSet, tmp_path: Path) -> None:
    path = synthetic_run(tmp_path / "run", pictures, steps=3)
    evaluate(path, [True, False])
    scores = path / "eval" / "finesearch" / "scores.jsonl"
    scores.write_text(scores.read_text().replace('"wrong"', '"perhaps"'))
    with pytest.raises(DataError, match=r"scores\.jsonl:2 is damaged"):
        read_run(path)
    (path / "eval" / "report.json").write_text("{}")
    with pytest.raises(DataError, match=r"report\.json cannot be read"):
        read_run(path)


def test_scores_of_other_questions_than_the_summary_are_not_used(
    pictures: PreparedSet, tmp_path: Path
) -> None:
    path = synthetic_run(tmp_path / "run", pictures, steps=3)
    evaluate(path, [True, False, True])
    scores = path / "eval" / "finesearch" / "scores.jsonl"
    scores.write_text("".join(scores.read_text().splitlines(keepends=True)[:2]))
    run = read_run(path)
    assert run.evaluation is not None
    assert run.evaluation.results[0].scored == ()
