"""The journal of teacher calls: appended before each, whatever becomes of its step."""

from __future__ import annotations

from pathlib import Path

import pytest

from bas_opd.errors import DataError
from bas_opd.run.journal import CallJournal, read_journal


def written(path: Path) -> CallJournal:
    journal = CallJournal(path)
    journal.begin(0)
    journal.write(0, 4)
    journal.write(1, 4)
    return journal


def test_calls_beyond_the_charged_ones_are_known(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    written(path).write(1, 4)
    made = read_journal(path)
    assert made is not None
    assert made.repeated(8) == 4


def test_a_journal_that_begins_later_counts_from_there(tmp_path: Path) -> None:
    journal = CallJournal(tmp_path / "calls.jsonl")
    journal.begin(20)
    journal.write(5, 4)
    made = read_journal(tmp_path / "calls.jsonl")
    assert made is not None
    assert made.repeated(24) == 0


@pytest.mark.parametrize("kept", range(0, 110, 3))
def test_a_line_cut_short_costs_itself_alone(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "calls.jsonl"
    written(path)
    content = path.read_bytes()[:kept]
    path.write_bytes(content)
    read_journal(path)
    journal = CallJournal(path)
    journal.begin(0)
    journal.write(1, 4)
    made = read_journal(path)
    assert made is not None
    assert made.made == 4 * max(1, content.count(b"\n"))


def test_a_run_without_one_is_not_judged(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "calls.jsonl") is None


@pytest.mark.parametrize(
    "line", [b"{\n", b"[]\n", b'{"calls": "4"}\n', b'{"step": 1}\n', b"\xff\n"]
)
def test_damage_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "calls.jsonl"
    written(path)
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(DataError, match=r"calls\.jsonl.* Restore the file"):
        read_journal(path)
