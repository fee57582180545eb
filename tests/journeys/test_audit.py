"""`bas-opd audit` as a user types it, on a run that `train` made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
from audit_fixtures import replace_part
from run_fixtures import TINY, small_run, small_settings, stop_at
from shapes import make_pictures
from typer.testing import CliRunner, Result

from bas_opd.audit import session, subject
from bas_opd.audit.records import (
    GeometryAudit,
    UtilityAudit,
    geometry_file,
    read_audit,
    utility_audits,
    utility_file,
)
from bas_opd.cli.main import app
from bas_opd.methods import BasOpd
from bas_opd.run.checkpoint import published

STAND_IN = "Teacher = student: the frozen student stood in"


def bas_opd(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def audit(run: Path, *options: str | Path) -> Result:
    small = ("--batches", "2", "--pairs", "1", "--checkpoints", "2", "--device", "cpu")
    return bas_opd("audit", run, *small, *options)


@pytest.fixture(scope="module")
def trained(small_qwen35: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("audit"), small_qwen35)


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_one_command_makes_every_audit_and_again_only_prints_them(
    run: Path, small_qwen35: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_out = make_pictures(tmp_path / "held-out", n=8, seed=9).folder
    done = audit(run, "--held-out", held_out)
    assert done.exit_code == 0, done.output
    for text in (
        "Utility on training batches, after step 5 (learned, budget 0.25): ",
        "Utility on held-out batches, after step 5 (learned, budget 0.25): ",
        "  budget  ",
        "  25 % (the run's)  ",
        "  quarter 1  ",
        "Spearman's correlation",
        "Gradients of the selected against the other rows",
    ):
        assert text in done.stdout
    assert done.stdout.count("Teacher: the run's own (ema).") == 3
    folder = run / "audit"
    assert {path.name for path in folder.iterdir()} == {
        "utility-training.json",
        "utility-held-out.json",
        "geometry.json",
    }
    geometry = read_audit(folder / "geometry.json", GeometryAudit)
    assert geometry is not None
    assert [each.step for each in geometry.checkpoints] == [4, 5]

    # What is there is kept: no model is loaded.
    def loaded(*_: object, **__: object) -> None:
        raise AssertionError("everything had been audited")

    with monkeypatch.context() as patched:
        patched.setattr(session, "audit_utility", loaded)
        patched.setattr(session, "audit_geometry", loaded)
        again = audit(run, "--held-out", held_out)
    assert again.stdout == done.stdout
    answer = json.loads(audit(run, "--held-out", held_out, "--json").stdout)
    assert set(answer["utility"]) == {"training", "held-out"}
    assert answer["utility"]["training"]["diagnostics"]["captures"][1]["ratio"] == "0.25"
    assert answer["geometry"]["checkpoints"][0]["norm_ratio"]["half_width"] is None

    # The run itself is as sound as before, and a new one in its place has no audit.
    assert bas_opd("verify", run).exit_code == 0
    other = small_settings(tmp_path, small_qwen35, "run.steps=1", "run.seed=5")
    assert bas_opd("train", TINY, *other, "--overwrite").exit_code == 0
    assert not folder.exists()


def test_an_audit_that_does_not_answer_the_question_is_made_again(run: Path) -> None:
    path = run / "audit" / "utility-training.json"
    assert audit(run, "--only", "utility").exit_code == 0
    assert not (run / "audit" / "geometry.json").exists()
    assert audit(run, "--only", "utility", "--batches", "1").exit_code == 0
    found = read_audit(path, UtilityAudit)
    assert found is not None
    assert {each.batch for each in found.candidates} == {0}
    path.write_text("{}")
    assert audit(run, "--only", "utility", "--batches", "1").exit_code == 0
    found = read_audit(path, UtilityAudit)
    assert found is not None
    assert found.teacher == "own"


def test_a_run_with_coverage_shows_what_it_chooses(small_qwen35: Path, tmp_path: Path) -> None:
    run = small_run(tmp_path, small_qwen35, "select.coverage=true")
    options = ("--only", "utility", "--batches", "1")
    done = audit(run, *options)
    assert done.exit_code == 0, done.output
    assert "after step 5 (learned, covering, budget 0.25): " in done.stdout
    path = utility_file(run, "training")
    whole = path.read_text()
    silent = whole.replace('"coverage": true,\n', "")
    assert silent != whole
    # Where an audit does not say so, the run does: nothing is measured again.
    path.write_text(silent)
    assert audit(run, *options).stdout == done.stdout
    assert path.read_text() == silent


def test_a_run_that_knows_which_responses_are_right_is_audited(
    small_qwen35: Path, tmp_path: Path
) -> None:
    run = small_run(tmp_path, small_qwen35, "select.policy=covering", "select.correctness=true")
    done = audit(run)
    assert done.exit_code == 0, done.output
    assert "Gradients of the selected against the other rows (covering, budget" in done.stdout
    assert "Spearman's correlation" in done.stdout


def test_a_stand_in_never_replaces_what_the_runs_own_teacher_said(run: Path) -> None:
    options = ("--only", "utility", "--batches", "1")
    assert audit(run, *options).exit_code == 0
    before = utility_file(run, "training").read_bytes()
    assert audit(run, *options, "--teacher", "student").exit_code == 0
    assert utility_file(run, "training").read_bytes() == before
    assert '"teacher": "student"' in utility_file(run, "training", "student").read_text()
    (found,) = utility_audits(run)
    assert found.teacher == "own"
    utility_file(run, "training").unlink()
    (found,) = utility_audits(run)
    assert found.teacher == "student"


def test_an_audit_that_cannot_be_written_is_a_sentence(run: Path) -> None:
    (run / "audit" / ".utility-training.json.partial").mkdir(parents=True)
    result = audit(run, "--only", "utility", "--batches", "1")
    assert result.exit_code == 1
    assert f"{run / 'audit' / 'utility-training.json'} cannot be written" in result.stderr


def test_a_lost_teacher_is_refused_and_a_stand_in_is_named_in_every_summary(run: Path) -> None:
    for checkpoint in published(run / "checkpoints"):
        replace_part(checkpoint, "teacher", None)
    refused = audit(run)
    assert refused.exit_code == 1
    assert "--teacher student" in refused.stderr
    assert not (run / "audit").exists()
    done = audit(run, "--teacher", "student")
    assert done.exit_code == 0, done.output
    assert done.stdout.count(STAND_IN) == 2
    assert "run's own (ema)" not in done.stdout
    assert '"teacher": "student"' in geometry_file(run, "student").read_text()


def test_a_run_that_asks_about_everything_has_no_gradients_to_compare(
    small_qwen35: Path, tmp_path: Path
) -> None:
    full = ("select.policy=full", "select.query_ratio=1", "run.steps=1")
    run = small_run(tmp_path, small_qwen35, *full)
    done = audit(run)
    assert done.exit_code == 0, done.output
    assert "No predictions: " in done.stdout
    assert "learned" not in done.stdout
    assert "no row is unselected" in done.stdout
    alone = audit(run, "--only", "geometry")
    assert alone.exit_code == 1
    assert "no row is unselected" in alone.stderr


def test_an_audit_that_is_stopped_keeps_what_it_finished(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        stop_at(patched, 1)
        stopped = audit(run)
    assert stopped.exit_code == 75
    assert "was stopped by SIGTERM" in stopped.stderr
    assert not (run / "audit").exists()
    assert audit(run, "--only", "utility").exit_code == 0
    kept = (run / "audit" / "utility-training.json").read_bytes()
    with monkeypatch.context() as patched:
        stop_at(patched, 1)
        assert audit(run).exit_code == 75
    assert (run / "audit" / "utility-training.json").read_bytes() == kept


def test_an_audit_closes_what_it_has_built(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, closed = list[BasOpd](), list[BasOpd]()
    build, close = subject.build_method, BasOpd.close

    def noting_build(*given: Any) -> Any:
        made.append(cast("BasOpd", build(*given)))
        return made[-1]

    def noting_close(method: BasOpd) -> None:
        closed.append(method)
        close(method)

    monkeypatch.setattr(subject, "build_method", noting_build)
    monkeypatch.setattr(BasOpd, "close", noting_close)
    assert audit(run, "--only", "utility").exit_code == 0
    shutil.rmtree(run / "checkpoints")  # The model that it saved is loaded in place of its base.
    stand_in = audit(run, "--only", "utility", "--teacher", "student")
    assert stand_in.exit_code == 0, stand_in.output
    with monkeypatch.context() as patched:
        stop_at(patched, 1)
        assert audit(run, "--only", "utility", "--teacher", "student", "--batches", "1").exit_code
    assert len(made) >= 3
    assert [id(each) for each in closed] == [id(each) for each in made]


def test_what_is_no_run_is_a_sentence(tmp_path: Path) -> None:
    result = audit(tmp_path)
    assert result.exit_code == 1
    assert result.stderr.startswith("bas-opd: There is no run in")
