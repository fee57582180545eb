"""`plan`, `verify`, `export` and `doctor` as typed, with what they print and their exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from run_fixtures import TINY, events_of, rewrite, small_run, small_settings
from typer.testing import CliRunner, Result

from bas_opd.cli.main import app


def bas_opd(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def trained(small_qwen35: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("trained"), small_qwen35, "run.steps=3")


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_a_sound_run_is_verified_with_exit_code_0(run: Path) -> None:
    result = bas_opd("verify", run, "--draws")
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith(f"{run}: sound.\n")
    assert all(line.split()[1] == "ok" for line in result.stdout.splitlines()[:-1])
    answer = json.loads(bas_opd("verify", run, "--json").stdout)
    assert answer["is_sound"]
    assert (answer["steps"], answer["planned_steps"]) == (3, 3)


def test_a_damaged_run_has_exit_code_4_and_its_step_is_named(run: Path) -> None:
    events = events_of(run)
    events[2]["budget"] += 1
    rewrite(run, events)
    result = bas_opd("verify", run)
    assert result.exit_code == 4
    assert "budget      FAILED\n    step 1: budget is" in result.stdout
    assert result.stdout.endswith("NOT sound.\n")
    answer = bas_opd("verify", run, "--json")
    assert answer.exit_code == 4
    assert not json.loads(answer.stdout)["is_sound"]


def test_a_run_with_steps_left_has_exit_code_4_unless_accepted(run: Path) -> None:
    rewrite(run, events_of(run)[:-1])
    assert bas_opd("verify", run).exit_code == 4
    assert bas_opd("verify", run, "--unfinished").exit_code == 0


def test_what_is_no_run_is_a_sentence(tmp_path: Path) -> None:
    for command in (("verify", tmp_path), ("export", tmp_path, tmp_path / "out")):
        result = bas_opd(*command)
        assert result.exit_code == 1
        assert result.stderr.startswith("bas-opd: There is no run in")


def test_export_says_which_moment_it_wrote(run: Path, tmp_path: Path) -> None:
    result = bas_opd("export", run, tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{tmp_path / 'out'}: step 3 (final model), float32.\n"
    assert bas_opd("export", run, tmp_path / "out").exit_code == 3
    rewrite(run, events_of(run)[:-1])
    result = bas_opd("export", run, tmp_path / "more", "--dtype", "bfloat16", "--json")
    expected = {"folder": str(tmp_path / "more"), "step": 3, "is_final": False, "dtype": "bfloat16"}
    assert json.loads(result.stdout) == expected | {"pushed": None}
    assert bas_opd("export", run, tmp_path / "x", "--dtype", "int4").exit_code == 2


def test_a_plan_shows_everything_and_leaves_nothing(small_qwen35: Path, tmp_path: Path) -> None:
    settings = small_settings(tmp_path, small_qwen35)
    before = sorted(tmp_path.rglob("*"))
    result = bas_opd("plan", TINY, *settings, "--probe")
    assert result.exit_code == 0, result.output
    for text in (
        "  query_ratio = 0.25\n",
        "\nsteps             5, of 16 rollouts each\n",
        "\nteacher calls     ",
        "if responses have 5\n",
        "\n  adamw           2.4 MB\n",
        "\ncheckpoint        4.8 MB, 2 kept\n",
        "per step)\n",
    ):
        assert text in result.stdout
    answer = json.loads(bas_opd("plan", TINY, *settings, "--json").stdout)
    assert (answer["steps"], answer["probe"]) == (5, None)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_plan_without_the_model_says_what_it_does_not_know(
    small_qwen35: Path, tmp_path: Path
) -> None:
    settings = small_settings(tmp_path, small_qwen35, f"model.path={tmp_path / 'nowhere'}")
    result = bas_opd("plan", TINY, *settings)
    assert result.exit_code == 0
    assert "teacher calls" in result.stdout
    assert "The model could not be measured." in result.stdout
    assert bas_opd("plan", TINY, *settings, "run.stepz=1").exit_code == 2


def test_the_doctor_exits_with_1_on_a_problem_and_says_how_to_fix_it(
    small_qwen35: Path, tmp_path: Path
) -> None:
    settings = small_settings(tmp_path, small_qwen35)
    result = bas_opd("doctor", TINY, *settings)
    assert result.exit_code == 0, result.output
    assert "ok       data          " in result.stdout
    result = bas_opd("doctor", TINY, *settings, "model.path=/nowhere", "--json")
    assert result.exit_code == 1
    (problem,) = [f for f in json.loads(result.stdout) if f["level"] == "problem"]
    assert problem["what"] == "model"
    assert "Name a folder with a checkpoint" in problem["text"]
    assert bas_opd("doctor", TINY, "model.pth=x").exit_code == 2
    assert bas_opd("doctor").exit_code == 0
