"""What a newcomer types first: presets and models by name, and what `train` says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from run_fixtures import TINY, small_settings
from test_cli import bas_opd
from typer.testing import CliRunner

import bas_opd as bas_opd_package
from bas_opd.cli.main import app
from bas_opd.config import load_config
from bas_opd.config.loading import presets
from bas_opd.errors import ConfigError
from bas_opd.model.base import NAMES, model_folder
from bas_opd.run.history import read_history

SMALL = (
    *("rollout.prompts_per_step=2", "rollout.per_prompt=2", "rollout.max_response_tokens=4"),
    *("run.steps=2", "select.query_ratio=0.5"),
)


def test_a_preset_and_the_shipped_model_have_names_in_any_folder(tmp_path: Path) -> None:
    result = bas_opd("train", "tiny", "model.path=small", *SMALL, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"data", "runs"}
    assert (tmp_path / "runs" / "tiny" / "model" / "model.safetensors").is_file()
    assert bas_opd("verify", "runs/tiny", cwd=tmp_path).returncode == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "Training small in runs/tiny: loading PyTorch."
    assert "Drawing 4 pictures of finesearch, to data/finesearch-4." in lines
    assert "Loading the model small." in lines
    assert result.stdout.count("queries are teacher calls made / allowed (K)") == 1
    following = [line.split("#")[0].split() for line in lines[lines.index("Next:") + 1 :]]
    assert [command[1] for command in following] == ["verify", "report", "data", "eval", "export"]
    for _, *command in following:
        done = bas_opd(*("8" if word == "400" else word for word in command), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    again = bas_opd("train", "tiny", "model.path=small", *SMALL, cwd=tmp_path)
    assert "has finished; nothing is left to do" in again.stdout
    export = bas_opd("export", "runs/tiny", "out", cwd=tmp_path)
    assert export.returncode == 0, export.stderr
    assert "base_model:" not in (tmp_path / "out" / "README.md").read_text()


def test_the_list_names_every_preset_and_model() -> None:
    said = CliRunner().invoke(app, ["train", "--list"])
    assert said.exit_code == 0
    order = re.findall(r"^  (\S+)$", said.stdout, re.M)
    assert sorted(order) == sorted(presets())
    assert order[:2] == ["tiny", "demo"]
    assert order.index("learned25") < order.index("covering12")
    assert all(name in said.stdout for name in NAMES)
    assert all(sentence.endswith(".") and len(sentence) < 300 for sentence in presets().values())


def test_a_file_comes_before_a_preset_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ("model.path=m", "data.path=d")
    assert load_config("qwen3.5-4b", settings).run.output == "runs/qwen3.5-4b"
    assert load_config("random25", settings).select.policy == "random"
    Path("random25").write_text("extends = 'entropy25'")
    assert load_config("random25", settings).select.policy == "entropy"
    with pytest.raises(ConfigError, match=r"Did you mean learned25\? .*train --list"):
        load_config("lerned25", settings)


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        (("train", "tiny", "model.path=small"), "Training small in runs/tiny: loading PyTorch.\n"),
        (("demo",), "The demo in runs/demo-1: loading PyTorch.\n"),
    ],
)
def test_a_command_speaks_before_it_loads_anything_slow(
    tmp_path: Path, arguments: tuple[str, ...], first: str
) -> None:
    """Loading PyTorch takes seconds, so it is what must not come first."""
    (tmp_path / "torch.py").write_text("import sys\nsys.exit(7)\n")
    (tmp_path / "here").mkdir()
    sources = Path(bas_opd_package.__file__).parents[1]
    said = subprocess.run(
        [sys.executable, "-c", "from bas_opd.cli.main import app; app()", *arguments],
        cwd=tmp_path / "here",
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{sources}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (said.returncode, said.stdout) == (7, first), said.stderr


def test_threads_that_wait_do_not_spin(tmp_path: Path) -> None:
    code = "from bas_opd.cli.main import app\napp(['verify', 'nowhere'], standalone_mode=False)\n"
    ended = "import atexit, os; atexit.register(lambda: print(os.environ['OMP_WAIT_POLICY']))\n"
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    said = subprocess.run(
        [sys.executable, "-c", ended + code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.stdout == "PASSIVE\n"


def test_a_model_that_has_no_name_stays_a_path() -> None:
    assert model_folder("somewhere/small") == "somewhere/small"
    assert (Path(model_folder("small2")) / "config.json").is_file()


def test_a_set_that_is_not_drawn_is_planned_without_its_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(app, ["plan", "tiny", "model.path=small"])
    assert said.exit_code == 0, said.output
    assert "teacher calls     96 of 384 candidates" in said.stdout
    assert "not known before the set finesearch is drawn" in said.stdout
    probed = CliRunner().invoke(app, ["plan", "tiny", "model.path=small", "--probe"])
    assert probed.exit_code == 1
    assert "the set finesearch has not been drawn yet" in probed.stderr
    assert not list(tmp_path.iterdir())


def test_a_plan_shows_the_settings_that_its_method_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["plan", "grpo", "model.path=small", "data.path=finesearch"]
    said = CliRunner().invoke(app, command).stdout
    assert "None" not in said
    assert "False" not in said
    sections = [line[1:-1] for line in said.splitlines() if line.startswith("[")]
    assert sections == [
        *("method", "model", "data", "rollout", "distill", "teacher", "grpo", "optim", "run")
    ]
    assert "[teacher]\n  tokens_per_batch = 16384\n[grpo]" in said
    assert "teacher reads" not in said
    assert "  reference  " in said


def test_a_plan_of_a_budget_that_pays_for_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(app, ["plan", "tiny", "model.path=small", "select.query_ratio=0.001"])
    assert (said.exit_code, said.stdout) == (2, "")
    assert "Set select.query_ratio to at least 0.03125" in said.stderr


def test_a_resumed_run_counts_the_calls_of_the_whole_run(
    small_qwen35: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bas_opd.run.console import Console

    seen: list[tuple[int, int]] = []
    step = Console.step

    def counted(console: Console, record: object) -> None:
        step(console, record)  # type: ignore[arg-type]
        seen.append((console.view.ledger.steps, console.view.ledger.calls))

    monkeypatch.setattr(Console, "step", counted)
    settings = small_settings(tmp_path, small_qwen35)
    for steps in (3, 5):
        done = CliRunner().invoke(app, ["train", str(TINY), *settings, f"run.steps={steps}"])
        assert done.exit_code == 0, done.output
    history = read_history(tmp_path / "run")
    calls = [step.calls for step in history.queries]
    assert seen == [(n, sum(calls[:n])) for n in range(1, 6)]
