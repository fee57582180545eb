from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from bas_opd import disk
from bas_opd.data.records import PreparedSet, Row, checksum, read_manifest
from bas_opd.data.writing import SetWriter, staged_set
from bas_opd.errors import DataError


def png(colour: str) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), colour).save(stream, "PNG")
    return stream.getvalue()


def add(writer: SetWriter, name: str, colour: str) -> None:
    image = writer.store(png(colour), name="a.png", place="images")
    writer.add(Row(id=name, image=image.name, question="?"))


def write(out: Path) -> None:
    with staged_set(out) as writer:
        add(writer, "a", "red")
        add(writer, "b", "red")
        add(writer, "c", "blue")
        writer.store(png("green"), name="unused.png", place="crops")
        writer.finish(source="test")


def test_equal_pictures_are_stored_once_and_unused_ones_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out)
    stored = {path.relative_to(out).as_posix() for path in out.rglob("*.png")}
    files = read_manifest(out).files
    assert stored == files.keys()
    assert len(stored) == 2
    assert all(checksum(out / name) == digest for name, digest in files.items())
    assert len(PreparedSet.load(out)) == 3


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(DataError, match="not an empty folder"):
        write(out)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "thesis.tex"]


def test_an_empty_folder_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out")
    assert len(PreparedSet.load(tmp_path / "out")) == 3


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupted() -> None:
        with staged_set(tmp_path / "out") as writer:
            add(writer, "a", "red")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_explained_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk.OpenFile, "write", full)
    with pytest.raises(DataError, match=r"could not be written.*No space left"):
        write(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_enormous_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.png"
    with path.open("wb") as stream:
        stream.truncate(1 << 40)
    with (
        pytest.raises(DataError, match="larger than 512 MiB"),
        staged_set(tmp_path / "out") as writer,
    ):
        writer.store_file(path, place="images")


def test_a_set_without_rows_is_not_written(tmp_path: Path) -> None:
    with (
        pytest.raises(DataError, match="gives no rows"),
        staged_set(tmp_path / "out") as writer,
    ):
        writer.finish(source="test")
