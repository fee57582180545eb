from __future__ import annotations

import csv
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub.errors import RepositoryNotFoundError
from PIL import Image

from bas_opd.data.check import check
from bas_opd.data.images import open_crop, open_image
from bas_opd.data.prepare import prepare
from bas_opd.data.records import PreparedSet, read_manifest
from bas_opd.errors import DataError

HINT = "Only focus on the objects inside the red bounding box in the image to answer this question."


def picture(path: Path, size: tuple[int, int], colour: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """A folder in the released layout, with three rows."""
    folder = tmp_path / "released"
    with (folder.mkdir() or folder / "train.jsonl").open("w") as stream:
        for row, colour in enumerate(("red", "green", "blue")):
            picture(folder / f"images/{row}.jpg", (80, 60), colour)
            picture(folder / f"teacher_images/{row}.jpg", (20, 12), colour)
            picture(folder / f"original_images/{row}.png", (80, 60), colour)
            question = f"What is in picture {row}?"
            content = {
                "images": [f"images/{row}.jpg"],
                "teacher_images": [f"teacher_images/{row}.jpg"],
                "original_images": [f"original_images/{row}.png"],
                "bbox": [10, 10, 30, 22],
                "problem": f"<image>{question}\n\n{HINT}",
                "answer": "B",
                "extra_info": {"question": question, "answer": "B"},
            }
            stream.write(json.dumps(content) + "\n")
    return folder


def released_parquet(folder: Path) -> Path:
    """The parquet form of a released folder, with absolute paths as its script writes them."""
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    table = [
        {
            "data_source": "vqa",
            "prompt": [{"role": "user", "content": row["problem"]}],
            "images": [{"path": str(folder / row["images"][0])}],
            "bbox_images": [{"path": str(folder / row["teacher_images"][0])}],
            "ability": "vqa",
            "reward_model": {"style": "none", "ground_truth": row["answer"]},
            "extra_info": row["extra_info"],
        }
        for row in rows
    ]
    pq.write_table(pa.Table.from_pylist(table), folder / "train.parquet")
    return folder / "train.parquet"


def plain(folder: Path, rows: list[Any]) -> Path:
    picture(folder / "a.png", (80, 60), "red")
    picture(folder / "crops/a.png", (40, 30), "red")
    path = folder / "rows.jsonl"
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    )
    return path


def test_the_boxed_view_is_the_release_without_its_image_marker(
    released: Path, tmp_path: Path
) -> None:
    summary = prepare(str(released), tmp_path / "out")
    assert (summary.rows, summary.with_crop, summary.rejected) == (3, 3, 0)
    first = PreparedSet.load(tmp_path / "out").examples[0]
    assert first.question == f"What is in picture 0?\n\n{HINT}"
    assert first.answer == "B"
    assert first.image.read_bytes() == (released / "images/0.jpg").read_bytes()
    assert first.crop is not None
    assert first.crop.area == 240 / 4800
    assert open_crop(first).size == (20, 12)
    assert read_manifest(tmp_path / "out").view == "boxed"


def test_the_clean_view_has_neither_box_nor_hint(released: Path, tmp_path: Path) -> None:
    prepare(str(released / "train.jsonl"), tmp_path / "out", view="clean")
    first = PreparedSet.load(tmp_path / "out").examples[0]
    assert first.question == "What is in picture 0?"
    assert first.image.read_bytes() == (released / "original_images/0.png").read_bytes()
    assert first.has_crop


def test_the_parquet_form_gives_the_same_rows(released: Path, tmp_path: Path) -> None:
    prepare(str(released / "train.jsonl"), tmp_path / "lines")
    prepare(str(released_parquet(released)), tmp_path / "table")
    lines, table = (PreparedSet.load(tmp_path / name).examples for name in ("lines", "table"))
    for a, b in zip(lines, table, strict=True):
        assert (a.id, a.question, a.answer) == (b.id, b.question, b.answer)
        assert a.image.read_bytes() == b.image.read_bytes()
        assert open_crop(a).tobytes() == open_crop(b).tobytes()
    assert {example.kind for example in table} == {"vqa"}


def test_the_parquet_form_has_no_clean_view(released: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="row 1: The parquet form has no clean pictures"):
        prepare(str(released_parquet(released)), tmp_path / "out", view="clean")


def test_a_parquet_that_was_moved_may_not_read_its_old_home(released: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    moved.mkdir()
    shutil.move(released_parquet(released), moved)
    with pytest.raises(DataError, match=r"row 1: The path .* leads out of the data folder"):
        prepare(str(moved), tmp_path / "out")


def test_pictures_inside_the_rows_are_taken(released: Path, tmp_path: Path) -> None:
    data = (released / "images/0.jpg").read_bytes()
    row = {"prompt": "<image>\nWhat?", "images": [{"bytes": data, "path": "x.jpg"}]}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "t.parquet")
    prepare(str(tmp_path / "t.parquet"), tmp_path / "out")
    (example,) = PreparedSet.load(tmp_path / "out").examples
    assert example.image.read_bytes() == data
    assert example.image.suffix == ".jpg"
    assert example.question == "What?"
    assert not example.has_crop


def test_a_row_without_a_crop_picture_falls_back_on_its_box(released: Path, tmp_path: Path) -> None:
    row = json.loads((released / "train.jsonl").read_text().splitlines()[0])
    del row["teacher_images"]
    (released / "train.jsonl").write_text(json.dumps(row) + "\n")
    prepare(str(released), tmp_path / "out")
    (example,) = PreparedSet.load(tmp_path / "out").examples
    assert example.crop is not None
    assert example.crop.box == (10, 10, 30, 22)


def test_plain_rows_give_their_crop_in_any_of_the_ways(tmp_path: Path) -> None:
    row = {"image": "a.png", "question": "What?"}
    source = plain(
        tmp_path / "src",
        [
            row | {"id": "list", "box": [10, 10, 50, 40], "answer": 3, "kind": "count"},
            row | {"id": "text", "box": "10, 10, 50, 40"},
            row | {"id": "brackets", "box": "[10, 10, 50, 40]"},
            row | {"id": "columns", "x0": 10, "y0": 10, "x1": 50, "y1": 40},
            row | {"id": 7, "crop": "crops/a.png"},
            row | {"id": "none", "box": None},
        ],
    )
    prepare(str(source), tmp_path / "out")
    examples = {example.id: example for example in PreparedSet.load(tmp_path / "out").examples}
    for name in ("list", "text", "brackets", "columns"):
        crop = examples[name].crop
        assert crop is not None
        assert crop.box == (10, 10, 50, 40)
        assert crop.area == 0.25
    pictured = examples["7"].crop
    assert pictured is not None
    assert pictured.image is not None
    assert pictured.area == 0.25
    assert not examples["none"].has_crop
    assert (examples["list"].answer, examples["list"].kind) == ("3", "count")


def test_a_csv_is_read_by_its_columns(tmp_path: Path) -> None:
    plain(tmp_path / "src", [])
    with (tmp_path / "src/rows.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["image", "question", "answer", "x0", "y0", "x1", "y1"])
        writer.writerow(["a.png", "What, then?", "it", "0", "0", "40", "30"])
        writer.writerow(["a.png", "And?", "", "", "", "", ""])
    prepare(str(tmp_path / "src/rows.csv"), tmp_path / "out")
    boxed, bare = PreparedSet.load(tmp_path / "out").examples
    assert boxed.question == "What, then?"
    assert boxed.crop is not None
    assert boxed.crop.area == 0.25
    assert not bare.has_crop


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"image": "../secret.png"}, "leads out of the data folder"),
        ({"image": "/etc/hostname"}, "leads out of the data folder"),
        ({"image": "http://example.org/a.png"}, "is a URL"),
        ({"image": "gone.png"}, "no file 'gone.png'"),
        ({"image": "text.png"}, r"text\.png cannot be read"),
        ({"image": None}, "'image' is missing"),
        ({"question": ""}, "'question' is missing"),
        ({"question": "\0"}, "NUL"),
        ({"crops": "crops/a.png"}, r"'crops' is not known. Did you mean 'crop'\?"),
        ({"box": [0, 0, 81, 10]}, "outside its picture of 80 x 60"),
        ({"box": [0, 0, 0, 10]}, "empty or inverted"),
        ({"box": [0, 0, float("nan"), 10]}, "not finite"),
        ({"box": [0, 0, 10]}, "'box"),
        ({"box": "0;0;10;10"}, "x0,y0,x1,y1"),
        ({"box": "0,0,10"}, "four numbers"),
        ({"x0": 1, "y0": 1}, "box is incomplete"),
        ({"x0": 1, "y0": 1, "x1": "foo", "y1": 9}, "Field 'x1'"),
        ({"box": [0, 0, 1, 1], "crop": "crops/a.png"}, "more than once"),
        ({"id": "good"}, "'good' is used twice"),
    ],
)
def test_the_first_bad_row_stops_with_its_number_and_reason(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    good = {"id": "good", "image": "a.png", "question": "What?"}
    source = plain(tmp_path / "src", [good, good | {"id": "bad"} | change])
    (tmp_path / "src/text.png").write_text("not a picture")
    (tmp_path / "secret.png").touch()
    with pytest.raises(DataError, match=rf"rows\.jsonl, row 2: .*{reason}"):
        prepare(str(source), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".*"))


def test_a_plain_row_may_not_name_its_picture_by_an_absolute_path(tmp_path: Path) -> None:
    inside = str(tmp_path / "src/a.png")
    source = plain(tmp_path / "src", [{"image": inside, "question": "What?"}])
    with pytest.raises(DataError, match=r"row 1: The path .* leads out of the data folder"):
        prepare(str(source), tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"images": []}, "'images' holds 0 pictures"),
        ({"images": ["images/0.jpg", "images/1.jpg"]}, "'images' holds 2 pictures"),
        ({"problem": "<image>Is <image> the same?"}, "other than at its start"),
        ({"problem": 4}, "'problem'"),
    ],
)
def test_a_bad_released_row_is_explained(
    released: Path, tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    row = json.loads((released / "train.jsonl").read_text().splitlines()[0])
    (released / "train.jsonl").write_text(json.dumps(row | change) + "\n")
    with pytest.raises(DataError, match=rf"train\.jsonl, row 1: .*{reason}"):
        prepare(str(released), tmp_path / "out")


@pytest.mark.parametrize("missing", ["original_images", "extra_info"])
def test_the_clean_view_needs_its_own_fields(released: Path, tmp_path: Path, missing: str) -> None:
    row = json.loads((released / "train.jsonl").read_text().splitlines()[0])
    del row[missing]
    (released / "train.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=f"row 1: .*{missing}"):
        prepare(str(released), tmp_path / "out", view="clean")


def test_a_prompt_with_several_messages_is_refused(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What?"}]
    source = plain(tmp_path / "src", [{"prompt": messages, "images": ["a.png"]}])
    with pytest.raises(DataError, match="one user message"):
        prepare(str(source), tmp_path / "out")


def test_quarantine_sets_bad_rows_aside_with_their_reasons(tmp_path: Path) -> None:
    rows: list[Any] = [{"image": "a.png", "question": f"What {row}?"} for row in range(99)]
    source = plain(tmp_path / "src", [*rows[:50], '{"image": "a.p', *rows[50:]])
    summary = prepare(str(source), tmp_path / "out", quarantine=True)
    assert (summary.rows, summary.rejected) == (99, 1)
    (line,) = (tmp_path / "out/rejected.jsonl").read_text().splitlines()
    rejected = json.loads(line)
    assert rejected["row"] == 51
    assert "not valid JSON" in rejected["reason"]
    assert rejected["source"] == '{"image": "a.p\n'
    assert check(tmp_path / "out").is_sound


def test_more_than_one_percent_of_bad_rows_stops_and_keeps_the_list(tmp_path: Path) -> None:
    rows = [{"image": "a.png", "question": f"What {row}?"} for row in range(97)]
    bad = {"image": "gone.png", "question": "What?"}
    source = plain(tmp_path / "src", [*rows, bad, bad])
    with pytest.raises(DataError, match=r"2 of 99 rows .* more than 1 %.* row 98: There is no"):
        prepare(str(source), tmp_path / "out", quarantine=True)
    assert not (tmp_path / "out").exists()
    assert len((tmp_path / "out.rejected.jsonl").read_text().splitlines()) == 2


def test_a_picture_that_only_a_rejected_row_used_is_not_kept(tmp_path: Path) -> None:
    rows = [{"image": "a.png", "question": f"What {row}?"} for row in range(100)]
    bad = {"image": "b.png", "question": "What?", "box": [0, 0, 900, 9]}
    source = plain(tmp_path / "src", [*rows, bad])
    picture(tmp_path / "src/b.png", (80, 60), "blue")
    prepare(str(source), tmp_path / "out", quarantine=True)
    assert len(list((tmp_path / "out/images").iterdir())) == 1


def test_a_limit_reads_only_the_first_rows(released: Path, tmp_path: Path) -> None:
    assert prepare(str(released), tmp_path / "out", limit=2).rows == 2


def test_a_prompt_too_long_for_the_model_is_refused_by_name(released: Path, tmp_path: Path) -> None:
    asked = []

    def length(size: tuple[int, int], question: str) -> int:
        asked.append(size)
        return 9000 if "picture 1" in question and size == (20, 12) else 8192

    with pytest.raises(DataError, match=r"row 2: Its prompt has 9,000 tokens, more than the 8,192"):
        prepare(str(released), tmp_path / "out", prompt_length=length)
    assert asked == [(80, 60), (20, 12)] * 2


def test_preparing_twice_gives_the_same_bytes(released: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        prepare(str(released), tmp_path / name)
    one, two = (
        {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
        for out in (tmp_path / "one", tmp_path / "two")
    )
    assert one == two


def test_a_source_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    for source in (tmp_path / "gone.jsonl", tmp_path / "gone"):
        with pytest.raises(DataError, match="does not exist"):
            prepare(str(source), tmp_path / "out")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(DataError, match=r"not one of \.jsonl"):
        prepare(str(tmp_path / "notes.txt"), tmp_path / "out")


def test_a_folder_with_several_tables_asks_which(tmp_path: Path) -> None:
    plain(tmp_path / "src", [{"image": "a.png", "question": "What?"}])
    shutil.copy(tmp_path / "src/rows.jsonl", tmp_path / "src/more.jsonl")
    with pytest.raises(DataError, match=r"several tables \(more\.jsonl, rows\.jsonl\)"):
        prepare(str(tmp_path / "src"), tmp_path / "out")
    shutil.copy(tmp_path / "src/rows.jsonl", tmp_path / "src/train.jsonl")
    assert prepare(str(tmp_path / "src"), tmp_path / "out").rows == 1


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("cut.parquet", b"PAR1 and no more", "cannot be read as parquet"),
        ("odd.csv", b'image,question\n"a.png,What?\n', "cannot be read as CSV"),
        ("twice.csv", b"image,image\na,b\n", "has a column twice"),
        ("wide.csv", b"image,question\na.png,What?,more\n", "row 1: .*beyond the last column"),
        ("latin.csv", "image,question\na.png,été\n".encode("latin-1"), "cannot be read as CSV"),
        ("empty.jsonl", b"", "gives no rows"),
    ],
)
def test_a_damaged_table_is_named(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name}.*{reason}"):
        prepare(str(tmp_path / name), tmp_path / "out")


def test_a_missing_library_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match="pip install 'datasets'"):
        prepare("someone/some-set", tmp_path / "out")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "t.parquet").touch()
    with pytest.raises(DataError, match="pip install 'pyarrow'"):
        prepare(str(tmp_path / "t.parquet"), tmp_path / "out")


class FakeDataset:
    """The part of a loaded `datasets.Dataset` that is used, over rows in memory."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.table = pa.Table.from_pylist(rows)

    def with_format(self, kind: str) -> FakeDataset:
        assert kind == "arrow"  # any other format would decode the pictures
        return self

    def iter(self, batch_size: int) -> list[pa.Table]:
        return [self.table.slice(at, batch_size) for at in range(0, len(self.table), batch_size)]


@pytest.mark.usefixtures("known_to_the_hub")
def test_a_dataset_id_is_loaded_through_its_library(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = (released / "images/0.jpg").read_bytes()
    rows = [
        {"images": [{"bytes": data, "path": None}], "problem": "<image>What?", "answer": "A"},
        {"images": [{"bytes": None, "path": "images/0.jpg"}], "problem": "What?", "answer": "A"},
    ]
    fake = SimpleNamespace(load_dataset=lambda name, split: FakeDataset(rows))
    monkeypatch.setitem(sys.modules, "datasets", fake)
    prepare("someone/some-set", tmp_path / "out", limit=1)
    (example,) = PreparedSet.load(tmp_path / "out").examples
    assert open_image(example.image).size == (80, 60)
    with pytest.raises(DataError, match=r"row 2: .*Download the dataset's files"):
        prepare("someone/some-set", tmp_path / "again")


@pytest.fixture
def known_to_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bas_opd.data.sources._check_hub", lambda name: None)


@pytest.mark.parametrize("name", ["nosuch", "there/nosuch"])
def test_a_name_that_is_neither_a_file_nor_a_hub_id_asks_no_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    with pytest.raises(DataError, match=rf"{name} does not exist.*OWNER/NAME"):
        prepare(name, tmp_path / "out")


def test_a_hub_that_lacks_a_dataset_or_is_not_there_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(self: Any, name: str, *, timeout: float) -> None:
        raise errors.pop()

    def loaded(name: str, split: str) -> None:
        raise AssertionError("it was loaded all the same")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=loaded))
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", asked)
    response = httpx2.Response(404, request=httpx2.Request("GET", "https://hub"))
    errors = [OSError("no route"), RepositoryNotFoundError("404", response=response)]
    with pytest.raises(DataError, match=r"no dataset of that name on the hub"):
        prepare("someone/some-set", tmp_path / "out")
    with pytest.raises(DataError, match=r"the hub cannot be asked .*no route.*HF_HUB_OFFLINE"):
        prepare("someone/some-set", tmp_path / "out")


@pytest.mark.usefixtures("known_to_the_hub")
def test_a_dataset_that_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(name: str, split: str) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=offline))
    with pytest.raises(DataError, match=r"someone/some-set cannot be loaded.*no route"):
        prepare("someone/some-set", tmp_path / "out")
