"""One module changes files: no other does, and it writes all that it is given."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bas_opd
from bas_opd import disk

PACKAGE = Path(bas_opd.__file__).parent
CHANGING = {
    "os": {
        *("open", "rename", "replace", "fsync", "unlink", "remove", "truncate", "ftruncate"),
        *("write", "pwrite", "mkdir", "makedirs", "rmdir", "link", "symlink", "chmod", "utime"),
    },
    "shutil": {"rmtree", "move", "copy", "copy2", "copyfile", "copyfileobj", "copytree"},
}
METHODS = {
    *("write_text", "write_bytes", "unlink", "rename", "mkdir", "touch", "rmdir", "symlink_to"),
    *("hardlink_to", "chmod"),
}
ALLOWED = {
    "model/weights.py: .replace": "the weights of a head, no file",
    "run/stopping.py: os.write": "a sentence for the terminal, from a signal handler",
    "reproduce/pool.py: os.open": "the log of a worker, which takes the place of its terminal",
}
"""What is no file, or no part of any result."""


def changes(tree: ast.AST) -> Iterator[str]:
    """Yield the calls that change files."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        function = call.func
        if isinstance(function, ast.Name) and function.id == "open" and _writes(call, 1):
            yield "open"
        if not isinstance(function, ast.Attribute):
            continue
        owner = function.value.id if isinstance(function.value, ast.Name) else ""
        if function.attr in CHANGING.get(owner, ()):
            yield f"{owner}.{function.attr}"
        elif owner != "disk" and function.attr in METHODS:
            yield f".{function.attr}"
        elif function.attr == "open" and owner not in ("os", "Image") and _writes(call, 0):
            yield ".open"
        elif function.attr == "replace" and len(call.args) == 1 and not call.keywords:
            yield ".replace"  # of a path: that of a text has two


def _writes(call: ast.Call, place: int) -> bool:
    given = [each.value for each in call.keywords if each.arg == "mode"]
    mode = (given or [*call.args[place : place + 1], None])[0]
    return mode is not None and not (isinstance(mode, ast.Constant) and mode.value in ("r", "rb"))


def test_no_other_module_changes_files() -> None:
    found = {
        f"{path.relative_to(PACKAGE).as_posix()}: {call}"
        for path in PACKAGE.rglob("*.py")
        if path.name != "disk.py"
        for call in changes(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == ALLOWED.keys()


@pytest.mark.parametrize(
    "code",
    [
        *("open('a', 'w')", "path.open('ab')", "path.open(mode='x')", "os.replace(a, b)"),
        *("path.write_text('a')", "path.replace(target)", "shutil.rmtree(a)", "path.open(mode)"),
    ],
)
def test_a_call_that_changes_files_is_seen(code: str) -> None:
    assert list(changes(ast.parse(code)))


@pytest.mark.parametrize(
    "code", ["path.open('rb')", "open(a)", "'a'.replace('b', 'c')", "disk.rename(a, b)"]
)
def test_a_call_that_reads_is_not(code: str) -> None:
    assert not list(changes(ast.parse(code)))


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(name: str, path: Path, act: Any, *arguments: Any) -> Any:
        return act(arguments[0][:2]) if name == "write" else act(*arguments)

    monkeypatch.setattr(disk, "_call", short)
    disk.write_file(tmp_path / "file", b"1234567")
    assert (tmp_path / "file").read_bytes() == b"1234567"
