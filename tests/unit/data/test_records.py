from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from bas_opd.data import images, records
from bas_opd.data.records import PreparedSet, confined
from bas_opd.errors import DataError

ROW: dict[str, Any] = {"id": "a", "image": "images/a.png", "question": "What is it?"}


def write_set(folder: Path, rows: list[Any], **manifest: Any) -> Path:
    """A prepared set made by hand, honest about its hash."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 20)).save(folder / "images" / "a.png")
    Image.new("RGB", (10, 8)).save(folder / "images" / "b.png")
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    text = "".join(line + "\n" for line in lines)
    (folder / "records.jsonl").write_text(text, "utf-8")
    content = {
        "schema_version": 1,
        "source": "by hand",
        "rows": len(rows),
        "with_crop": 0,
        "kinds": {},
        "records_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "files": {},
    }
    (folder / "manifest.json").write_text(json.dumps(content | manifest), "utf-8")
    return folder


def test_a_row_becomes_an_example(tmp_path: Path) -> None:
    box = {"box": [0, 0, 10, 8], "area": 0.1}
    rows = [ROW | {"crop": box, "answer": "a cat", "kind": "what"}, ROW | {"id": "b"}]
    prepared = PreparedSet.load(write_set(tmp_path, rows))
    first, second = prepared.examples
    assert (first.id, first.question, first.answer, first.kind) == (
        "a",
        "What is it?",
        "a cat",
        "what",
    )
    assert first.image == tmp_path.resolve() / "images" / "a.png"
    assert first.crop is not None
    assert first.crop.box == (0, 0, 10, 8)
    assert first.crop.area == 0.1
    assert not second.has_crop
    assert len(prepared) == 2


def test_an_area_that_was_not_stored_is_measured(tmp_path: Path) -> None:
    rows = [
        ROW | {"crop": {"box": [0, 0, 10, 10]}},
        ROW | {"id": "b", "crop": {"image": "images/b.png"}},
    ]
    boxed, pictured = PreparedSet.load(write_set(tmp_path, rows)).examples
    assert boxed.crop is not None
    assert boxed.crop.area == 100 / 800
    assert pictured.crop is not None
    assert pictured.crop.area == 80 / 800
    assert pictured.crop.image == tmp_path.resolve() / "images" / "b.png"


def test_loading_opens_no_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crop = {"box": [0, 0, 10, 8], "area": 0.1}
    folder = write_set(tmp_path, [ROW | {"crop": crop}])

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("A picture was opened.")

    monkeypatch.setattr(images.Image, "open", refuse)
    assert len(PreparedSet.load(folder)) == 1


def test_the_fingerprint_follows_the_records(tmp_path: Path) -> None:
    one = PreparedSet.load(write_set(tmp_path / "one", [ROW]))
    same = PreparedSet.load(write_set(tmp_path / "same", [ROW]))
    other = PreparedSet.load(write_set(tmp_path / "other", [ROW | {"answer": "a dog"}]))
    assert one.fingerprint == same.fingerprint != other.fingerprint


def test_edited_records_are_refused(tmp_path: Path) -> None:
    folder = write_set(tmp_path, [ROW])
    (folder / "records.jsonl").write_text(json.dumps(ROW | {"answer": "x"}) + "\n")
    with pytest.raises(DataError, match="has changed since it was prepared"):
        PreparedSet.load(folder)


def test_the_bad_row_of_edited_records_is_named(tmp_path: Path) -> None:
    folder = write_set(tmp_path, [ROW])
    bad = ROW | {"id": "b", "crop": {"box": [0, 0, 41, 8], "area": 0.1}}
    (folder / "records.jsonl").write_text(f"{json.dumps(ROW)}\n{json.dumps(bad)}\n")
    with pytest.raises(DataError, match=r"row 2: .*outside its picture of 40 x 20"):
        PreparedSet.load(folder)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('{"id": "a", "image": "images/a.p', "not valid JSON"),
        ("[1, 2]", "not a JSON object"),
        ("[" * 100_000, "not valid JSON"),
        ('{"id": "a", "id": "b"}', "has a field twice"),
        ({"id": "b", "image": "images/a.png"}, "'question' is missing"),
        (ROW | {"note": 1}, "'note' is not known"),
        (ROW | {"question": 5}, "'question' must be text"),
        (ROW | {"question": " \n"}, "'question': it is blank"),
        (ROW | {"question": "a\0b"}, "NUL"),
        (ROW | {"answer": "\ud800"}, "surrogate"),
        (ROW | {"id": ""}, "'id'"),
        (ROW | {"crop": {}}, "either a box or an image"),
        (ROW | {"crop": {"box": [0, 0, 1, 1], "image": "images/b.png"}}, "either a box or"),
        (ROW | {"crop": {"box": [0, 0, 1]}}, "'crop.box 4'"),
        (ROW | {"crop": {"box": [0, 0, 41, 1]}}, "outside"),
        (ROW | {"crop": {"box": [0, 0, 1, 1], "area": float("nan")}}, "'crop.area'"),
        (ROW | {"image": "images/gone.png"}, "no file 'images/gone.png'"),
        (ROW | {"image": "../a.png"}, "leads out of the data folder"),
        (ROW | {"image": "/etc/hostname"}, "leads out of the data folder"),
        (ROW | {"image": "https://example.org/a.png"}, "is a URL"),
        (ROW | {"crop": {"image": "../b.png"}}, "leads out of the data folder"),
    ],
)
def test_a_bad_row_is_named_with_its_reason(tmp_path: Path, row: Any, reason: str) -> None:
    good = ROW | {"id": "good"}
    with pytest.raises(DataError, match=rf"records\.jsonl, row 2: .*{reason}"):
        PreparedSet.load(write_set(tmp_path, [good, row]))


def test_an_id_used_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="row 2: The id 'a' is used twice"):
        PreparedSet.load(write_set(tmp_path, [ROW, ROW]))


def test_a_set_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no rows"):
        PreparedSet.load(write_set(tmp_path, []))


def test_a_folder_that_was_not_prepared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="data prepare SRC OUT"):
        PreparedSet.load(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"schema_version": 1}'])
def test_a_damaged_manifest_is_named(tmp_path: Path, content: str) -> None:
    folder = write_set(tmp_path, [ROW])
    (folder / "manifest.json").write_text(content)
    with pytest.raises(DataError, match=r"manifest\.json is damaged"):
        PreparedSet.load(folder)


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="schema version 2, but this program reads 1"):
        PreparedSet.load(write_set(tmp_path, [ROW], schema_version=2))


def test_a_link_may_not_leave_the_folder(tmp_path: Path) -> None:
    outside = tmp_path / "outside.png"
    outside.write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "inside.png").write_bytes(b"public")
    (root / "good.png").symlink_to(root / "inside.png")
    (root / "bad.png").symlink_to(outside)
    (root / "loop.png").symlink_to(root / "loop.png")
    (root / "up").symlink_to(tmp_path)
    assert confined(root, "good.png").read_bytes() == b"public"
    for name in ("bad.png", "up/outside.png", "loop.png", "a" * 5000, "a\0b", "", "."):
        with pytest.raises(DataError):
            confined(root, name)


def test_an_absolute_path_is_admitted_only_where_asked_and_only_inside(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for path in (root / "a.png", tmp_path / "b.png"):
        path.touch()
    inside = str(root / "a.png")
    assert confined(root, inside, absolute_inside=True) == (root / "a.png").resolve()
    with pytest.raises(DataError, match="leads out"):
        confined(root, inside)
    with pytest.raises(DataError, match="leads out"):
        confined(root, str(tmp_path / "b.png"), absolute_inside=True)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone: No such file or directory\. Check the path"):
        records.checksum(tmp_path / "gone")
