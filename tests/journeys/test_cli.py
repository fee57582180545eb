"""The command as a user types it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bas_opd import __version__
from bas_opd.cli.demo import new_folder
from bas_opd.cli.main import app
from bas_opd.errors import ConfigError

ROOT = Path(__file__).parents[2]
LEARNED25 = ROOT / "configs" / "learned25.toml"


def bas_opd(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
    """Run the command in a process of its own, through its entry point."""
    code = "from bas_opd.cli.main import app; app(prog_name='bas-opd')"
    inherited = {key: value for key, value in os.environ.items() if key != "BAS_OPD_DEBUG"}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=cwd,
        env={**inherited, "PYTHONPATH": str(ROOT / "src"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_version_is_the_packages(tmp_path: Path) -> None:
    result = bas_opd("--version", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, f"bas-opd {__version__}\n")


def test_help_lists_the_commands_and_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from bas_opd.cli.main import app\n"
        "app(['--help'], standalone_mode=False)\n"
        "print(sorted({'torch', 'transformers', 'pydantic', 'PIL'} & set(sys.modules)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    for name in ("train", "demo", "data"):
        assert f"\n  {name} " in result.stdout
    assert result.stdout.endswith("[]\n")


@pytest.mark.parametrize("group", [[], ["data"], ["data", "make"], ["reproduce"]])
def test_the_help_line_of_a_command_fits_a_terminal_of_80_columns(
    tmp_path: Path, group: list[str]
) -> None:
    text = bas_opd(*group, "--help", cwd=tmp_path, COLUMNS="80").stdout
    lines = text.partition("Commands:\n")[2].splitlines()
    assert lines
    for line in lines:
        assert line.endswith("."), line
        assert not line.endswith("..."), line


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("report", "[OPTIONS] {RUN}..."),
        ("compare", "[OPTIONS] {RUN}..."),
        ("export", "[OPTIONS] {RUN} {OUT}"),
        ("data show", "[OPTIONS] {SET} {ROW}"),
        ("data prepare", "[OPTIONS] {SRC} {OUT}"),
        ("bench", "[OPTIONS] [MODEL]"),
    ],
)
def test_the_usage_of_a_command_names_its_arguments_in_capitals(command: str, usage: str) -> None:
    said = CliRunner().invoke(app, [*command.split(), "--help"], prog_name="bas-opd").stdout
    assert said.startswith(f"Usage: bas-opd {command} {usage}\n")


def test_the_help_of_reproduce_names_what_can_be_made(tmp_path: Path) -> None:
    said = bas_opd("reproduce", "--help", cwd=tmp_path).stdout
    assert "table1 to table8 and figure0 to figure5" in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            [LEARNED25],
            "model.path is not set: give a local folder or hub id, such as "
            "model.path=Qwen/Qwen3.5-4B, or model.path=small for the model in this package.",
        ),
        (
            [LEARNED25, "select.query_ration=0.1"],
            "On the command line, select.query_ration is not a setting. "
            "Did you mean select.query_ratio?",
        ),
        (
            [LEARNED25.with_name("lerned25.toml")],
            f"There is no config file {LEARNED25.with_name('lerned25.toml')}. "
            f"Did you mean {LEARNED25}? `bas-opd train --list` lists the presets.",
        ),
    ],
)
def test_a_config_error_is_a_sentence_with_exit_code_2_and_leaves_nothing(
    tmp_path: Path, arguments: list[str | Path], sentence: str
) -> None:
    result = bas_opd("train", *arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"bas-opd: {sentence}\n")
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_hostile_message_cannot_steer_the_terminal(tmp_path: Path) -> None:
    result = bas_opd("train", LEARNED25, "\x1b[2J=1", cwd=tmp_path)
    assert "\\x1b[2J is not a setting" in result.stderr
    assert "\x1b" not in result.stderr


@pytest.mark.parametrize("how", ["flag", "environment"])
def test_debug_shows_the_traceback(tmp_path: Path, how: str) -> None:
    arguments = ["--debug"] if how == "flag" else []
    environment = {} if how == "flag" else {"BAS_OPD_DEBUG": "1"}
    result = bas_opd(*arguments, "train", LEARNED25, cwd=tmp_path, **environment)
    assert result.returncode == ConfigError.exit_code
    assert "Traceback" in result.stderr
    assert "ConfigError: model.path is not set" in result.stderr
    assert "bas-opd: model.path is not set" in result.stderr


def test_a_command_that_does_not_exist_is_a_usage_error(tmp_path: Path) -> None:
    assert bas_opd("trian", cwd=tmp_path).returncode == 2
    assert bas_opd("train", cwd=tmp_path).returncode == 2


def test_a_demo_never_touches_an_earlier_one(tmp_path: Path) -> None:
    first = new_folder(tmp_path / "runs", "demo")
    (first / "mine").write_text("keep")
    (tmp_path / "runs" / "demo-2").write_text("a file of the user's")
    assert new_folder(tmp_path / "runs", "demo").name == "demo-3"
    assert (first / "mine").read_text() == "keep"


@pytest.mark.parametrize("folder", ["taken", "taken/inside"])
def test_a_demo_where_a_file_is_says_so_and_leaves_it(tmp_path: Path, folder: str) -> None:
    (tmp_path / "taken").write_text("a file of the user's")
    result = bas_opd("demo", "--folder", folder, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith(f"bas-opd: The demo cannot make its folder in {folder}: ")
    assert "--folder" in result.stderr
    assert "Traceback" not in result.stderr
    assert (tmp_path / "taken").read_text() == "a file of the user's"
