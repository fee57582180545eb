"""Lists of names, typed with blanks after their commas or without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bas_opd.cli.main import app


def typed(monkeypatch: pytest.MonkeyPatch, called: str, *arguments: object) -> Any:
    """Type a command and return what the function it calls was given first, and by name."""
    given: list[Any] = []

    def stand_in(*positional: Any, **named: Any) -> Any:
        given.append((positional[0], named))
        raise SystemExit(0)

    monkeypatch.setattr(called, stand_in)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return given[0]


def test_arms_may_have_blanks_around_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = ("reproduce", "policies", "--out", tmp_path, "--arms", "full, random25 ,base")
    request, _ = typed(monkeypatch, "bas_opd.reproduce.policies.reproduce", *command)
    assert request.arms == ("full", "random25", "base")


def test_kinds_may_have_blanks_around_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = ("data", "make", "finesearch", tmp_path, "--split", "val", "--kinds", " count, pair")
    _, named = typed(monkeypatch, "bas_opd.data.finesearch.make_finesearch", *command)
    assert list(named["kinds"]) == ["count", "pair"]


def test_benchmarks_may_have_blanks_around_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("vstar", "pope"):
        (tmp_path / name).mkdir()
    command = ("eval", "model", "--bench", "vstar, pope", "--data", tmp_path)
    request, _ = typed(monkeypatch, "bas_opd.evaluate.command.evaluate_model", *command)
    assert list(request.benchmarks) == ["vstar", "pope"]
    assert request.data == {name: str(tmp_path / name) for name in ("vstar", "pope")}
