"""Replies of a judge by content, in a file that several programs may share."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

SCHEMA_VERSION = 1


class CachedReply(BaseModel):
    """One reply of a judge."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    text: str
    finish: str | None
    tokens: int
    fallbacks: tuple[str, ...]


class VerdictCache:
    """An append-only JSONL file of replies; each is on disk when `add` returns.

    Replies are stored verbatim, also those that are no verdict, and are interpreted when they are
    read; only thinking is left out. A line that a crash cut short is skipped, and its reply is
    requested again. Every lookup also reads what other programs have appended since the last one.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        self._read_bytes = 0
        self._replies: dict[str, list[CachedReply]] = {}
        self._lock = threading.Lock()

    def find(self, key: str) -> tuple[CachedReply, ...]:
        """Return every reply for this content, oldest first."""
        with self._lock:
            self._catch_up()
            return tuple(self._replies.get(key, ()))

    def spent(self) -> tuple[int, int]:
        """Return how many replies are in the file, and how many tokens they took."""
        with self._lock:
            self._catch_up()
            replies = [reply for those in self._replies.values() for reply in those]
        return len(replies), sum(reply.tokens for reply in replies)

    def add(self, key: str, reply: CachedReply) -> None:
        """Append one reply and wait until it is on disk."""
        record = {"schema_version": SCHEMA_VERSION, "key": key, **reply.model_dump()}
        line = json.dumps(record, separators=(",", ":")).encode("ascii") + b"\n"
        with self._lock, self._exclusive():
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, 1, size - 1) != b"\n":
                line = b"\n" + line  # The line before was cut short; keep it apart from this one.
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> VerdictCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _catch_up(self) -> None:
        """Read the whole lines that any program has appended since the last lookup."""
        new = b""
        while part := os.pread(self._file, 1 << 20, self._read_bytes + len(new)):
            new += part
        whole = new[: new.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.splitlines():
            try:
                record = _Record.model_validate_json(line)
            except ValidationError:
                continue
            reply = CachedReply(**record.model_dump(exclude={"schema_version", "key"}))
            self._replies.setdefault(record.key, []).append(reply)


class _Record(CachedReply):
    schema_version: int
    key: str
