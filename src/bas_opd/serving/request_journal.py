"""The journal of requests to a served teacher: each line is on disk before its request is sent.

A request that was out at a kill is therefore charged. Needs no torch.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bas_opd import disk
from bas_opd.errors import DataError
from bas_opd.files import append_json, drop_cut_line

SCHEMA_VERSION = 2
FIELDS: Mapping[str, type] = {
    "step": int,
    "row": int,
    "key": str,
    "tokens": int,
    "response_tokens": int,
}
"""Of a line: `key` is the hash of what was asked, and `tokens` are what the request is charged, of
which `response_tokens` are those of the response. Lines of version 1 lack these.
0 tokens: nothing was sent, because the answer to the same content was stored already."""


class RequestJournal:
    """What was sent for each step, over all resumes of a run."""

    def __init__(self, path: Path, *, check: Callable[[], None] = lambda: None) -> None:
        """`check` raises if the file is no longer the run's."""
        self._path, self._check = path, check
        self.tokens = 0
        """Charged for all requests."""
        self.requests: Counter[int] = Counter()
        """Step -> requests that were sent for it."""
        self.version = 0
        """Of the newest lines."""
        self._response_tokens: dict[int, list[int]] = {}
        self._rows: dict[int, set[tuple[int, str]]] = {}
        self._asked: set[tuple[int, str]] = set()

    @classmethod
    def resume(cls, path: Path, *, check: Callable[[], None] = lambda: None) -> RequestJournal:
        """Return the journal of a run, which may be new."""
        journal = cls(path, check=check)
        if path.exists() and drop_cut_line(path, check):
            journal.read()
        if journal.version < SCHEMA_VERSION:  # It is new, or an older version began it.
            check()
            disk.make_folder(path.parent, exist_ok=True)
            append_json(path, {"schema_version": SCHEMA_VERSION})
            disk.sync(path.parent)
        return journal

    def write(self, step: int, row: int, key: str, tokens: int, response_tokens: int = 0) -> None:
        """Charge a request that is about to be sent, or note with 0 tokens that none is needed."""
        self._check()
        values = (step, row, key, tokens, response_tokens)
        append_json(self._path, dict(zip(FIELDS, values, strict=True)))
        self._count(*values)

    def response_tokens(self, step: int) -> Sequence[int]:
        """Return the response tokens of each request of a step; 0 where they are not on record."""
        return self._response_tokens.get(step, ())

    def was_asked(self, step: int, key: str) -> bool:
        """Return whether a request for this content was sent in a step."""
        return (step, key) in self._asked

    def lists(self, step: int, row: int, key: str) -> bool:
        """Return whether a row of a step is on record with this content."""
        return (row, key) in self._rows.get(step, ())

    def rows(self, step: int) -> set[int]:
        """Return the rows of a step that are on record."""
        return {row for row, _ in self._rows.get(step, ())}

    def read(self) -> None:
        """Read the file."""
        with self._path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break  # It is being written, or a kill cut it short.
                entry = _parse(line, f"{self._path}:{number}")
                if "schema_version" in entry:
                    self.version = entry["schema_version"]
                else:
                    self._count(**entry)

    def _count(self, step: int, row: int, key: str, tokens: int, response_tokens: int) -> None:
        self._rows.setdefault(step, set()).add((row, key))
        self.tokens += tokens
        if tokens:
            self.requests[step] += 1
            self._response_tokens.setdefault(step, []).append(response_tokens)
            self._asked.add((step, key))


def without_retries(tokens: Iterable[int], retries: int) -> int:
    """Return the tokens of requests together, but for the longest, which count as retries."""
    return sum(sorted(tokens, reverse=True)[retries:])


def read_requests(path: Path) -> RequestJournal | None:
    """Return what a journal holds, without changing it; None if there is none."""
    if not path.exists():
        return None
    journal = RequestJournal(path)
    journal.read()
    return journal


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is damaged: {error}. Restore the file.") from None
    if not isinstance(entry, dict):
        raise DataError(f"{where} is no line of a journal of requests. Restore the file.")
    if type(version := entry.get("schema_version")) is int:
        if version > SCHEMA_VERSION:
            raise DataError(f"{where} was written by a newer bas-opd. Install that version.")
        return entry
    entry = {"response_tokens": 0, **entry}
    is_line = {name: type(value) for name, value in entry.items()} == FIELDS
    if not is_line or not 0 <= entry["response_tokens"] <= entry["tokens"]:
        raise DataError(f"{where} is no line of a journal of requests. Restore the file.")
    return entry
