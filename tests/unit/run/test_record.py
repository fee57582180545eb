from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bas_opd.errors import DataError
from bas_opd.run.record_file import RecordWriter, holds_place, read_records


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records.jsonl"


def write(path: Path, *events: dict[str, object]) -> None:
    with RecordWriter(path) as writer:
        for event in events:
            writer.write(event)


def test_events_come_back_as_they_were_written(path: Path) -> None:
    write(path, {"event": "step", "rows": [1, 2]}, {"event": "end"})
    assert list(read_records(path)) == [
        {"schema_version": 1, "event": "step", "rows": [1, 2]},
        {"schema_version": 1, "event": "end"},
    ]


def test_a_second_writer_appends(path: Path) -> None:
    write(path, {"n": 1})
    write(path, {"n": 2})
    assert [event["n"] for event in read_records(path)] == [1, 2]


def test_an_event_is_on_disk_when_write_returns(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_size))
    with RecordWriter(path) as writer:
        writer.write({"n": 1})
        assert synced == [path.stat().st_size]
        assert synced[0] > 0


def test_what_json_cannot_hold_becomes_null(path: Path) -> None:
    write(path, {"loss": math.nan, "deep": {"features": [(1.0, -math.inf)]}})
    event = next(read_records(path))
    assert event["loss"] is None
    assert event["deep"] == {"features": [[1.0, None]]}


@given(text=st.text(st.characters(exclude_categories=[]) | st.sampled_from("\n\r\u2028\x00\ud800")))
def test_any_text_stays_on_one_line_and_comes_back(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.mktemp("records") / "records.jsonl"
    write(path, {"response": text}, {"response": "after"})
    assert path.read_bytes().count(b"\n") == 2
    assert [event["response"] for event in read_records(path)] == [text, "after"]


@pytest.mark.parametrize(
    "damage",
    [
        *(b'{"schema_version":1,"lo', b"\xff\xff\n", b"\n", b'{"schema_version":1,"x":NaN}\n'),
        b'{"schema_version":1,"x":1e999}\n',
    ],
)
def test_a_damaged_line_is_named_and_those_before_it_are_read(path: Path, damage: bytes) -> None:
    write(path, {"n": 1}, {"n": 2})
    path.write_bytes(path.read_bytes() + damage)
    events = read_records(path)
    assert [next(events)["n"], next(events)["n"]] == [1, 2]
    with pytest.raises(DataError, match=r"records\.jsonl:3 is damaged"):
        next(events)


@pytest.mark.parametrize("line", ["[]", "{}", '{"schema_version":"1"}', "7"])
def test_a_line_that_is_no_record_is_named(path: Path, line: str) -> None:
    path.write_text(line + "\n")
    with pytest.raises(DataError, match=r"records\.jsonl:1 is no record"):
        list(read_records(path))


def test_a_record_of_a_newer_version_is_refused(path: Path) -> None:
    path.write_text(json.dumps({"schema_version": 2}) + "\n")
    with pytest.raises(DataError, match="Install a newer bas-opd"):
        list(read_records(path))


def test_a_damaged_version_is_not_taken_for_a_newer_one(path: Path) -> None:
    write(path, {"n": 1}, {"n": 2})
    path.write_bytes(path.read_bytes().replace(b'"schema_version":1', b'"schema_version":3', 1))
    with pytest.raises(DataError, match=r"records\.jsonl:1 does not follow"):
        list(read_records(path))


@pytest.mark.parametrize(
    "rewritten",
    [lambda text: b"\xef\xbb\xbf" + text, lambda text: text.replace(b"\n", b"\r\n")],
)
def test_records_rewritten_by_another_program_are_refused_by_every_reader(
    rewritten: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "records.jsonl"
    with RecordWriter(path) as writer:
        writer.write({"event": "started"})
        place = writer.place
    path.write_bytes(rewritten(path.read_bytes()))
    with pytest.raises(DataError, match="rewritten by another program"):
        list(read_records(path))
    assert not holds_place(path, place)
