"""The figures of the documentation, drawn again from the records they were made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bas_opd.cli.progress import Board
from bas_opd.reproduce.catalogue import make_item
from bas_opd.reproduce.policies import Request

DOCS = Path(__file__).parents[2] / "docs"
POLICIES: dict[str, Any] = {"results": DOCS / "results" / "policies"}
AUDIT: dict[str, Any] = {"runs": (DOCS / "results",)}


@pytest.mark.parametrize(
    ("name", "material"),
    [
        ("figure0", POLICIES),
        ("figure2", POLICIES),
        ("figure3", AUDIT),
        ("figure4", AUDIT),
        ("figure5", POLICIES),
    ],
)
def test_a_published_figure_is_that_of_its_records(
    tmp_path: Path, name: str, material: dict[str, Any]
) -> None:
    make_item(name, Request(out=tmp_path), Board(), **material)
    files = sorted(tmp_path.glob("*.svg"))
    assert [file.name for file in files] == sorted(
        file.name for file in (DOCS / "figures").glob(f"{name}*")
    )
    for file in files:
        assert file.read_bytes() == (DOCS / "figures" / file.name).read_bytes()
