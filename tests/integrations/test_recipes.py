from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="TRL is not installed; `make trainers` installs it")

from recipes.trainers import trl_local


def test_the_example_for_trl_runs_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["trl_local.py", str(tmp_path), *words])
        trl_local.main()
        return capsys.readouterr().out

    first = run("--steps", "10")
    assert "The teacher scored 80 of 320 rows" in first
    assert "0 rows over the budget" in first
    before, after = map(float, re.findall(r"from ([\d.]+) to ([\d.]+)\.$", first.strip())[0])
    assert after < before
    assert "The teacher scored 96 of 384 rows" in run("--steps", "12", "--resume")
