"""Tables and pictures that cannot be trusted."""

from __future__ import annotations

import os
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from benchmark_files import (
    base64_of,
    png,
    stored,
    write_file,
    write_lines,
    write_parquet,
    write_table,
)

from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks import pictures
from bas_opd.evaluate.benchmarks.reading import Layout, Record, read_records

NAMED = Layout(tables=("rows.jsonl",), columns=(("text",),), places=("{}", "more/{}"))
HELD = Layout(tables=("rows*.parquet", "rows.tsv"), columns=(("text",),))


def read(folder: Path, layout: Layout) -> list[Record]:
    return read_records(folder, [layout])


def tsv(folder: Path, rows: list[dict[str, Any]]) -> list[Record]:
    write_table(folder / "rows.tsv", rows, delimiter="\t")
    return read(folder, HELD)


def test_a_folder_without_the_tables_has_no_rows(tmp_path: Path) -> None:
    assert read(tmp_path, NAMED) == []


def test_the_first_layout_that_is_there_is_read_alone(tmp_path: Path) -> None:
    write_parquet(tmp_path / "rows.parquet", [{"text": "held", "image": png()}])
    write_file(tmp_path / "a.png", png())
    write_lines(tmp_path / "rows.jsonl", [{"text": "named", "image": "a.png"}])
    for layouts, text in (([NAMED, HELD], "named"), ([HELD, NAMED], "held")):
        (record,) = read_records(tmp_path, layouts)
        assert record.text("text") == text


def test_a_named_picture_may_lie_in_any_of_its_places(tmp_path: Path) -> None:
    write_file(tmp_path / "more/a.png", png())
    write_lines(tmp_path / "rows.jsonl", [{"text": "x", "image": "a.png"}])
    (record,) = read(tmp_path, NAMED)
    assert record.picture() == png()


@pytest.mark.parametrize(
    "name", ["../secret.png", "/etc/hostname", "https://example.org/a.png", "link.png", "", None]
)
def test_a_picture_cannot_lie_outside_the_folder(name: str | None, tmp_path: Path) -> None:
    write_file(tmp_path / "secret.png", png())
    folder = tmp_path / "set"
    write_lines(folder / "rows.jsonl", [{"text": "x", "image": name}])
    os.symlink(tmp_path / "secret.png", folder / "link.png")
    with pytest.raises(DataError, match=r"rows.jsonl, row 1"):
        read(folder, NAMED)


def test_a_path_inside_a_parquet_row_cannot_lead_outside(tmp_path: Path) -> None:
    write_file(tmp_path / "secret.png", png())
    write_file(tmp_path / "set/a.png", png())
    paths = ["../secret.png", "a.png"]
    rows = [{"text": "x", "image": {"bytes": None, "path": path}} for path in paths]
    write_parquet(tmp_path / "set/rows.parquet", rows)
    outside, within = read(tmp_path / "set", HELD)
    assert within.picture() == png()
    with pytest.raises(DataError, match="leads out of the data folder"):
        outside.picture()


def test_a_table_cannot_be_a_link_to_elsewhere(tmp_path: Path) -> None:
    write_parquet(tmp_path / "rows.parquet", [{"text": "x", "image": png()}])
    (tmp_path / "set").mkdir()
    os.symlink(tmp_path / "rows.parquet", tmp_path / "set/rows.parquet")
    with pytest.raises(DataError, match="leads out of the data folder"):
        read(tmp_path / "set", HELD)


def test_the_links_of_the_hubs_cache_are_followed_into_its_blobs_and_no_further(
    tmp_path: Path,
) -> None:
    cache = tmp_path / "datasets--owner--name"
    folder = cache / "snapshots/abc"
    folder.mkdir(parents=True)
    write_file(cache / "blobs/1", png())
    write_lines(cache / "blobs/2", [{"text": "x", "image": "a.png"}])
    os.symlink("../../blobs/1", folder / "a.png")
    os.symlink("../../blobs/2", folder / "rows.jsonl")
    (record,) = read(folder, NAMED)
    assert record.picture() == png()
    write_file(tmp_path / "secret.png", png())
    (folder / "a.png").unlink()
    os.symlink(tmp_path / "secret.png", folder / "a.png")
    with pytest.raises(DataError, match="leads out"):
        read(folder, NAMED)


@pytest.mark.parametrize(
    "cell",
    [
        stored(b"not a picture"),
        stored(png()[:40]),
        {"bytes": None, "path": None},
        {"bytes": b"", "path": "a.png"},
    ],
)
def test_what_is_no_picture_is_refused_when_it_is_opened(
    cell: dict[str, Any], tmp_path: Path
) -> None:
    write_parquet(tmp_path / "rows.parquet", [{"text": "x", "image": cell}])
    (record,) = read(tmp_path, HELD)
    with pytest.raises(DataError, match=r"rows.parquet, row 1"):
        record.picture()


def test_a_picture_file_that_is_none_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    write_file(tmp_path / "a.png", b"GIF? no")
    write_lines(tmp_path / "rows.jsonl", [{"text": "x", "image": "a.png"}])
    (record,) = read(tmp_path, NAMED)
    with pytest.raises(DataError, match=r"a.png cannot be read"):
        record.picture()


def test_a_picture_of_too_many_pixels_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    bomb = bytearray(png())
    bomb[16:24] = (9_000).to_bytes(4, "big") * 2
    crc = zlib.crc32(bomb[12:29])
    bomb[29:33] = crc.to_bytes(4, "big")
    (record,) = tsv(tmp_path, [{"text": "x", "image": base64_of(bytes(bomb))}])
    with pytest.raises(DataError, match="9000 x 9000 pixels, more than the limit"):
        record.picture()


@pytest.mark.parametrize("cell", ["", "@@@@", "abc", base64_of(b"text"), "@" + base64_of(png())])
def test_what_is_no_base64_of_a_picture_is_refused_when_it_is_opened(
    cell: str, tmp_path: Path
) -> None:
    (record,) = tsv(tmp_path, [{"text": "x", "image": cell}])
    with pytest.raises(DataError, match=r"rows.tsv, row 1"):
        record.picture()


def test_a_tsv_cell_may_hold_tabs_line_breaks_and_quotes(tmp_path: Path) -> None:
    texts = ["a\tb", 'say ""hi"" "', "two\nlines\r\nthree", " plain ", '"']
    rows = [
        {"text": text, "image": base64_of(png(size=(n + 1, 1)))} for n, text in enumerate(texts)
    ]
    records = tsv(tmp_path, rows)
    assert [record.cells["text"] for record in records] == texts
    assert [record.picture() for record in records] == [png(size=(n + 1, 1)) for n in range(5)]


def test_a_tsv_picture_longer_than_the_standard_reader_takes_is_read(tmp_path: Path) -> None:
    from PIL import Image

    Image.effect_noise((500, 500), 90).convert("RGB").save(tmp_path / "noise.png")
    data = (tmp_path / "noise.png").read_bytes()
    assert len(data) > 131_072
    (record,) = tsv(tmp_path, [{"text": "x", "image": base64_of(data)}])
    assert record.picture() == data


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text\timage\nx\n", "1 cells under 2 columns"),
        ('text\timage\n"x\ty\n', "ends inside quotes"),
        ("words\timage\nx\ty\n", r"^\S+rows.tsv: There is no column text, only words, image"),
        (b"text\timage\n\xff\ty\n", "cannot be read as TSV"),
    ],
)
def test_a_damaged_tsv_is_refused(content: str | bytes, message: str, tmp_path: Path) -> None:
    data = content if isinstance(content, bytes) else content.encode()
    write_file(tmp_path / "rows.tsv", data)
    with pytest.raises(DataError, match=message):
        read(tmp_path, HELD)


def test_a_damaged_line_and_a_missing_field_are_refused_with_their_row(tmp_path: Path) -> None:
    write_file(tmp_path / "a.png", png())
    good = b'{"text": "x", "image": "a.png"}\n'
    for bad, message in ((b'{"text": "x"', "not valid JSON"), (b'{"image": "a.png"}', "no column")):
        write_file(tmp_path / "rows.jsonl", good + bad)
        with pytest.raises(DataError, match=rf"row 2: .*{message}"):
            read(tmp_path, NAMED)


def test_a_blank_cell_is_refused_where_a_text_must_be(tmp_path: Path) -> None:
    write_parquet(tmp_path / "rows.parquet", [{"text": " ", "image": png()}])
    (record,) = read(tmp_path, HELD)
    with pytest.raises(DataError, match=r"row 1: Its text is missing or blank"):
        record.text("text")


def test_a_parquet_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "rows.parquet", [{"text": "x", "image": png()}])
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="cannot be read as parquet"):
        read(tmp_path, HELD)


def test_without_pyarrow_the_error_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(tmp_path / "rows.parquet", [{"text": "x", "image": png()}])
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match="pip install pyarrow"):
        read(tmp_path, HELD)


def test_pictures_of_all_row_groups_are_found_in_any_order(tmp_path: Path) -> None:
    drawn = [png(size=(n + 1, 2)) for n in range(23)]
    rows = [{"text": str(n), "image": stored(data)} for n, data in enumerate(drawn)]
    write_parquet(tmp_path / "rows-0.parquet", rows[:13], row_group_size=5)
    write_parquet(tmp_path / "rows-1.parquet", rows[13:], row_group_size=4)
    records = read(tmp_path, HELD)
    order = [(7 * n) % 23 for n in range(23)]
    assert [records[n].picture() for n in order] == [drawn[n] for n in order]


def test_threads_that_want_pictures_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"text": "x", "image": png(size=(n + 1, 2))} for n in range(8)]
    write_parquet(tmp_path / "rows.parquet", rows, row_group_size=1)
    records = read(tmp_path, HELD)
    reading, most, with_parquet = 0, 0, pictures.with_parquet

    def slowly(*arguments: Any) -> Any:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        time.sleep(0.01)
        reading -= 1
        return with_parquet(*arguments)

    monkeypatch.setattr(pictures, "with_parquet", slowly)
    with ThreadPoolExecutor(4) as pool:
        opened = list(pool.map(lambda record: record.picture(), records))
    assert opened == [row["image"] for row in rows]
    assert most == 1


def test_only_texts_are_read_before_a_picture_is_asked_for(tmp_path: Path) -> None:
    row = {"text": "x", "image": png(), "crop_image": stored(png()), "other": png(), "n": 3}
    write_parquet(tmp_path / "rows.parquet", [row])
    (record,) = read(tmp_path, HELD)
    assert record.cells == {"text": "x", "n": 3}


def test_a_mark_of_byte_order_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    content = f"\ufefftext\timage\r\nx\t{base64_of(png())}\r\n"
    write_file(tmp_path / "rows.tsv", content.encode())
    (record,) = read(tmp_path, HELD)
    assert (record.text("text"), record.picture()) == ("x", png())
