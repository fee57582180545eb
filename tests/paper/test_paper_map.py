"""The map from the paper to the code, held to what exists."""

from __future__ import annotations

import re

import pytest
from doc_names import NAME, ROOT, assert_exists, names_in

MAP = (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8")
NAMES = names_in(MAP)
PLACES = [
    *(f"Eq. {n}" for n in range(1, 13)),
    *(f"line {n}" for n in range(1, 16)),
    *(f"Table {n}" for n in range(1, 9)),
    *(f"Figure {n}" for n in range(1, 6)),
]


@pytest.mark.parametrize(("file", "name"), NAMES, ids=map("::".join, NAMES))
def test_a_name_on_the_map_exists(file: str, name: str) -> None:
    assert_exists(file, name)


def test_every_mention_of_a_definition_is_read() -> None:
    assert MAP.count("::") == len(NAME.findall(MAP)) + 1  # `file::name`


@pytest.mark.parametrize("place", PLACES)
def test_every_place_of_the_paper_has_one_row(place: str) -> None:
    assert MAP.count(f"\n| {place} |") == 1


# Line 10 is the end of an if.
@pytest.mark.parametrize("place", [p for p in PLACES if p[0] in "El" and p != "line 10"])
def test_every_equation_and_line_has_code_and_a_test(place: str) -> None:
    (row,) = re.findall(rf"^\| {re.escape(place)} \|.*$", MAP, re.MULTILINE)
    *_, code, test = re.split(r"(?<!\\)\|", row.strip("| "))
    assert "::" in code
    assert "`tests/" in test
