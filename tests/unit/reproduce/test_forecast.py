"""A reproduction says what it will run before it draws or trains anything."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bas_opd.cli.main import app
from bas_opd.errors import BasOpdError, ConfigError
from bas_opd.reproduce import policies
from bas_opd.reproduce.arms import ArmSpec
from bas_opd.reproduce.forecast import Forecast
from bas_opd.reproduce.policies import Request, ask


def forecast_of(request: Request, missing: Sequence[str | ArmSpec]) -> Forecast:
    told: list[Forecast] = []
    ask(replace(request, confirm=told.append), missing)
    (forecast,) = told
    return forecast


def test_it_counts_runs_steps_pictures_and_disk(tmp_path: Path) -> None:
    request = Request(out=tmp_path / "out", jobs=2, device="cpu", train_n=10, test_n=20)
    forecast = forecast_of(request, ["full", "full", "learned25"])
    assert (forecast.runs, forecast.steps, forecast.pictures, forecast.jobs) == (3, 333, 30, 2)
    assert forecast.rollouts == 333 * 224
    small = ArmSpec("small", "full", ("rollout.prompts_per_step=8",))
    fewer = forecast_of(request, ["full", small, "fewer1"])
    assert fewer.rollouts == 111 * (224 + 64 + 28)
    assert forecast.text.startswith("This will make 3 runs of 333 steps altogether, 2 at a time, ")
    assert f"GB in {tmp_path / 'out'}" in forecast.text
    (tmp_path / "out/data/train").mkdir(parents=True)
    assert forecast_of(request, ["full"]).pictures == 20
    swept = replace(request, rates="1e-4", val_n=5)
    assert forecast_of(swept, ["full"]).pictures == 5
    assert forecast_of(swept, ["full"]).questions == 5
    longer = forecast_of(replace(request, device="cuda"), ["full"])
    assert longer.seconds < forecast_of(request, ["full"]).seconds


def test_it_says_nothing_where_nothing_is_left_and_refuses_what_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(out=tmp_path, confirm=lambda forecast: pytest.fail("asked"))
    ask(request, [])
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10})())
    with pytest.raises(BasOpdError, match=r"has 0\.0 GB free, but the runs take about"):
        ask(request, ["full"])


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was begun: nothing is drawn or trained."""
    begun: list[str] = []

    def inputs(*_: Any, **__: Any) -> None:
        begun.append("inputs")
        raise ConfigError("begun")

    monkeypatch.setattr(policies, "common_inputs", inputs)
    return begun


@pytest.mark.parametrize("name", ["policies", "table3", "figure5"])
def test_long_work_is_asked_about_unless_yes(tmp_path: Path, idle: list[str], name: str) -> None:
    command = ["reproduce", name, "--out", str(tmp_path / "out"), "--device", "cpu"]
    said = CliRunner().invoke(app, command)
    assert said.exit_code == 2
    assert "This will make " in said.stderr
    assert said.stderr.endswith("Add --yes to start it.\n")
    assert not idle
    assert name != "policies" or not (tmp_path / "out").exists()
    assert "begun" in CliRunner().invoke(app, [*command, "--yes"]).stderr
    assert idle
    idle.clear()
    if name == "policies":
        short = [*command, "--steps", "1", "--arms", "full", "--seeds", "1"]
        tiny = (
            "--train-n",
            "8",
            "--test-n",
            "8",
            "rollout.per_prompt=1",
            "rollout.prompts_per_step=8",
        )
        assert "begun" in CliRunner().invoke(app, [*short, *tiny]).stderr


def test_what_a_figure_needs_is_checked_before_its_runs(
    tmp_path: Path, idle: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "svglib.svglib", None)
    command = ["reproduce", "figure5", "--out", str(tmp_path / "out"), "--yes"]
    said = CliRunner().invoke(app, command)
    assert said.exit_code == 2
    assert "pip install svglib" in said.stderr
    assert not idle
