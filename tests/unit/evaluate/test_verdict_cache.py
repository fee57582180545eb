"""A judge's replies on disk."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bas_opd.evaluate.judge import VerdictCache
from bas_opd.serving.endpoint import Reply


def said(text: str = "Yes") -> Reply:
    return Reply(text=text, finish="stop", tokens=3, fallbacks=("f",))


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
        assert [len(cache.find(key)) for key in "abcd"] == [1, 0, 1, 1]


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


def test_threads_append_in_parallel_and_every_line_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    keys = [f"{name}{number}" for name in "xyz" for number in range(60)]
    with VerdictCache(path) as cache, ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda key: cache.add(key, said("long " * 90)), keys))
        assert all(cache.find(key) for key in keys)
    with VerdictCache(path) as cache:
        assert all(cache.find(key) for key in keys)
    assert len(path.read_bytes().splitlines()) == 180


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
