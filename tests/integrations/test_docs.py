"""What the page shows of other trainers: the names exist, and their arguments too."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL is not installed; `make trainers` installs it")

PAGE = Path(__file__).parents[2] / "docs" / "use-in-your-trainer.md"
BLOCKS = re.findall(r"^```py\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.M)


def test_the_page_shows_both_trainers_in_under_30_lines() -> None:
    assert len(BLOCKS) == 2
    assert all(len(block.splitlines()) < 30 for block in BLOCKS)


@pytest.mark.parametrize("block", BLOCKS, ids=["local", "served"])
def test_every_name_and_argument_exists(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    tree = ast.parse(block)
    names: dict[str, Any] = {}
    for line in (node for node in tree.body if isinstance(node, ast.ImportFrom)):
        for alias in line.names:
            names[alias.name] = getattr(importlib.import_module(str(line.module)), alias.name)
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
    ]
    assert len(calls) >= 4
    for call in calls:
        assert isinstance(call.func, ast.Name)
        known: set[str] = set()
        target = names[call.func.id]
        for each in inspect.getmro(target) if inspect.isclass(target) else [target]:
            known |= set(inspect.signature(each).parameters)
        assert {str(keyword.arg) for keyword in call.keywords} <= known
