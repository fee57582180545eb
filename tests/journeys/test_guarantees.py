"""The page of guarantees, held to the tests it names."""

from __future__ import annotations

import pytest
from doc_names import NAME, ROOT, assert_exists, names_in

PAGE = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
NAMES = names_in(PAGE)
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and "---" not in line]
PROMISES = [row for row in ROWS if not row.startswith("| promise")]


@pytest.mark.parametrize(("file", "name"), NAMES, ids=map("::".join, NAMES))
def test_a_test_that_is_named_exists(file: str, name: str) -> None:
    assert file.startswith("tests/")
    assert name.startswith("test_")
    assert_exists(file, name)


def test_every_mention_is_read() -> None:
    assert PAGE.count("::") == len(NAME.findall(PAGE))


@pytest.mark.parametrize("row", PROMISES, ids=lambda row: row.split("|")[1].strip())
def test_a_promise_says_what_it_means_and_names_a_test(row: str) -> None:
    promise, meaning, tests = (cell.strip() for cell in row.strip("| ").split("|"))
    assert promise
    assert meaning.endswith(".")
    assert NAME.search(tests)
