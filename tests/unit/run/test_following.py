from __future__ import annotations

from pathlib import Path

import pytest

from bas_opd.errors import DataError
from bas_opd.run.record_file import RecordFollower, RecordWriter


def numbers(follower: RecordFollower) -> tuple[bool, list[int]]:
    lines = list(follower.read())
    return None in lines, [line.event()["n"] for line in lines if line is not None]


def test_each_event_is_returned_once_as_it_comes(tmp_path: Path) -> None:
    follower = RecordFollower(tmp_path / "records.jsonl")
    assert numbers(follower) == (True, [])
    with RecordWriter(tmp_path / "records.jsonl") as writer:
        writer.write({"n": 1})
        assert numbers(follower) == (True, [1])
        assert numbers(follower) == (False, [])
        writer.write({"n": 2})
        writer.write({"n": 3})
        assert numbers(follower) == (False, [2, 3])


def test_a_line_that_is_still_being_written_waits(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    with RecordWriter(path) as writer:
        writer.write({"n": 1})
        writer.write({"n": 2})
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    follower = RecordFollower(path)
    assert numbers(follower) == (True, [1])
    path.write_bytes(whole)
    assert numbers(follower) == (False, [2])


@pytest.mark.parametrize("again", [0, 1, 2, 5])
def test_a_truncated_file_is_returned_from_the_first_line(tmp_path: Path, again: int) -> None:
    """A resumed run writes other events over the place that was read, shorter or longer."""
    path = tmp_path / "records.jsonl"
    follower = RecordFollower(path)
    with RecordWriter(path) as writer:
        writer.write({"n": 1})
        kept = writer.place["records_bytes"]
        writer.write({"n": 2})
    assert numbers(follower) == (True, [1, 2])
    with RecordWriter(path, keep_bytes=kept) as writer:
        for number in range(again):
            writer.write({"n": 10**number})
    assert numbers(follower) == (True, [1, *(10**number for number in range(again))])


def test_a_changed_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    with RecordWriter(path) as writer:
        writer.write({"n": 1})
        writer.write({"n": 2})
    path.write_bytes(path.read_bytes().replace(b'"n":2', b'"n":7'))
    with pytest.raises(DataError, match=r"records\.jsonl:2 does not follow"):
        list(RecordFollower(path).read())
