"""Files that are complete or absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bas_opd import disk
from bas_opd.files import publish, write_text


def test_a_folder_gets_its_name_after_everything_in_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = tmp_path / "staging"
    (staging / "sub").mkdir(parents=True)
    for name in ("a", "sub/b"):
        (staging / name).write_text(name)
    done: list[Path] = []
    rename = os.rename

    def renaming(source: Path, target: Path) -> None:
        assert {*staging.rglob("*"), staging} <= set(done)
        rename(source, target)

    monkeypatch.setattr(disk, "sync", done.append)
    monkeypatch.setattr(os, "rename", renaming)
    publish(staging, tmp_path / "out")
    assert (tmp_path / "out" / "sub" / "b").read_text() == "sub/b"
    assert done[-1] == tmp_path


@pytest.mark.parametrize("name", ["page", ".page.partial"])
def test_a_link_is_replaced_and_not_followed(name: str, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("precious")
    (tmp_path / name).symlink_to(elsewhere)
    write_text(tmp_path / "page", "new")
    assert elsewhere.read_text() == "precious"
    assert (tmp_path / "page").read_text() == "new"
    assert not (tmp_path / "page").is_symlink()
    assert not (tmp_path / ".page.partial").exists()
