"""A judge's replies on disk."""

from __future__ import annotations

import fcntl
import multiprocessing
import threading
import warnings
from pathlib import Path

import pytest

from bas_opd.evaluate.verdict_cache import CachedReply, VerdictCache


def said(text: str = "Yes") -> CachedReply:
    return CachedReply(text=text, finish="stop", tokens=3, fallbacks=("f",))


@pytest.mark.parametrize("keep", [1, 20, -2, -1])
def test_a_line_cut_short_costs_itself_at_most(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "new" / "verdicts.jsonl"
    with VerdictCache(path) as cache:
        cache.add("a", said())
        whole = path.stat().st_size
        cache.add("b", said())
    data = path.read_bytes()
    path.write_bytes(data[:whole] + data[whole:][:keep])
    with VerdictCache(path) as cache:
        assert cache.find("a") == (said(),)
        assert cache.find("b") == ()
        cache.add("c", said("No"))
        cache.add("d", said("No"))
    with VerdictCache(path) as cache:
        assert [len(cache.find(key)) for key in "abcd"] == [1, int(keep == -1), 1, 1]


@pytest.mark.parametrize(
    "line", [b"", b"[]", b"{}", b"\xff\xfe", b"\x00" * 40, b'{"key": "a", "text": 7}', b"[" * 9999]
)
def test_a_damaged_line_is_no_verdict_and_spoils_no_other(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    path.write_bytes(line + b"\n")
    with VerdictCache(path) as cache:
        assert cache.find("a") == ()
        cache.add("a", said())
        assert cache.find("a") == (said(),)


def test_two_programs_append_in_parallel_and_see_each_others_replies(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    one = VerdictCache(path)

    def child(name: str) -> None:
        with VerdictCache(path) as cache:
            for number in range(60):
                cache.add(f"{name}{number}", said("long " * 90))

    context = multiprocessing.get_context("fork")
    children = [context.Process(target=child, args=(name,)) for name in "xy"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads
        for each in children:
            each.start()
    for number in range(60):
        one.add(f"z{number}", said())
    for each in children:
        each.join()
    assert all(one.find(f"{name}{number}") for name in "xyz" for number in range(60))
    assert len(path.read_bytes().splitlines()) == 180


def test_a_reply_is_not_added_while_another_program_adds_one(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    with VerdictCache(path) as cache, path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        adding = threading.Thread(target=cache.add, args=("a", said()))
        adding.start()
        adding.join(0.2)
        assert path.read_bytes() == b""
        fcntl.flock(other, fcntl.LOCK_UN)
        adding.join()
        assert cache.find("a") == (said(),)


def test_what_another_adds_after_the_first_look_is_found(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    with VerdictCache(path) as one, VerdictCache(path) as two:
        one.add("a", said())
        assert (one.find("a"), one.find("b")) == ((said(),), ())
        two.add("b", said("No"))
        assert one.find("b") == (said("No"),)


def test_any_reply_comes_back_as_it_was_written(tmp_path: Path) -> None:
    text = 'é\u2028\n\x00\U0001f600"\\'
    with VerdictCache(tmp_path / "verdicts.jsonl") as cache:
        cache.add("a", said(text))
        assert cache.find("a") == (said(text),)


def test_spending_is_read_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    with VerdictCache(path) as cache:
        assert cache.spent() == (0, 0)
        for key in ("a", "a", "b"):
            cache.add(key, said())
    with VerdictCache(path) as cache:
        assert cache.spent() == (3, 9)
