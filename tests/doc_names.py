"""Names of code and tests as pages write them: `path/to/file.py::name`."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAME = re.compile(r"`([\w./-]+\.py)::([\w.]+)`")


def names_in(text: str) -> list[tuple[str, str]]:
    """The files and names that a page mentions, each pair once."""
    return sorted(set(NAME.findall(text)))


def assert_exists(file: str, name: str) -> None:
    """Fail unless a test, or a definition of the package, is where a page says."""
    path = ROOT / file if file.startswith("tests/") else ROOT / "src" / "bas_opd" / file
    assert path.is_file(), f"There is no {path}."
    assert name in definitions(path)


@cache
def definitions(path: Path) -> frozenset[str]:
    """Functions and classes of a file, and methods as `Class.method`."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{m.name}" for m in node.body if isinstance(m, ast.FunctionDef)}
    return frozenset(names)
