from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from shapes import make_pictures

from bas_opd.data.check import check
from bas_opd.data.records import checksum


def one_picture(folder: Path) -> Path:
    return sorted((folder / "images").iterdir())[0]


def flip_a_bit(folder: Path) -> None:
    path = one_picture(folder)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def remove_a_picture(folder: Path) -> None:
    one_picture(folder).unlink()


def edit_the_records(folder: Path) -> None:
    path = folder / "records.jsonl"
    path.write_text(path.read_text().replace("small", "tiny"))


def repeat_a_row(folder: Path) -> None:
    path = folder / "records.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n")


def cut_a_row(folder: Path) -> None:
    path = folder / "records.jsonl"
    path.write_text(path.read_text()[:-20])


def edit_manifest(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def miscount(folder: Path) -> None:
    edit_manifest(folder, with_crop=0)


def unlist(folder: Path) -> None:
    edit_manifest(folder, files={})


def list_a_file_outside(folder: Path) -> None:
    files = json.loads((folder / "manifest.json").read_text())["files"]
    edit_manifest(folder, files=files | {"../outside.png": "0"})


def hash_a_damaged_picture_anew(folder: Path) -> None:
    path = one_picture(folder)
    path.write_bytes(path.read_bytes()[:-200])
    files = json.loads((folder / "manifest.json").read_text())["files"]
    name = path.relative_to(folder).as_posix()
    edit_manifest(folder, files=files | {name: checksum(path)})


def hash_a_box_outside_anew(folder: Path) -> None:
    path = folder / "records.jsonl"
    first, *rest = path.read_text().splitlines()
    row = json.loads(first)
    row["crop"]["box"][2] = 9000
    path.write_text("\n".join([json.dumps(row), *rest]) + "\n")
    edit_manifest(folder, records_sha256=checksum(path))


def test_a_fresh_set_is_sound(tmp_path: Path) -> None:
    make_pictures(tmp_path / "set", n=12, seed=3)
    report = check(tmp_path / "set")
    assert report.is_sound
    assert (report.rows, report.with_crop, report.pictures) == (12, 9, 12)
    assert report.kinds == {"colour": 4, "count": 2, "exists": 2, "shape": 4}


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (flip_a_bit, "has changed since it was prepared"),
        (remove_a_picture, "There is no file"),
        (edit_the_records, "records.jsonl has changed"),
        (repeat_a_row, "Row 7: The id 'picture-3-00000' is used twice"),
        (cut_a_row, "Row 6: It is not valid JSON"),
        (miscount, "The counts of rows"),
        (unlist, "Row 1: The manifest does not list 'images/"),
        (list_a_file_outside, "leads out of the data folder"),
        (hash_a_damaged_picture_anew, "cannot be read"),
        (hash_a_box_outside_anew, "outside its picture of 256 x 192"),
    ],
)
def test_every_damage_is_found(
    tmp_path: Path, damage: Callable[[Path], None], problem: str
) -> None:
    make_pictures(tmp_path / "set", n=6, seed=3)
    damage(tmp_path / "set")
    report = check(tmp_path / "set")
    assert not report.is_sound
    assert any(problem in found for found in report.problems), report.problems
