"""What a judge has said, by content, in a file that several programs may share."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One reply of a judge, paid for."""

    text: str
    finish: str | None
    tokens: int
    fallbacks: tuple[str, ...]


class VerdictCache:
    """An append-only JSONL file of replies; one that was added survives a crash of the machine.

    Replies are kept as they were said, also those that are no verdict: what they mean is read anew
    each time. Only what a judge thought first is left out. A line that a crash cut short is passed
    over, and its reply asked for again. Other programs that append meanwhile are heard at every
    look.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        self._read_bytes = 0
        self._said: dict[str, list[Said]] = {}
        self._lock = threading.Lock()

    def find(self, key: str) -> tuple[Said, ...]:
        """Return every reply on record for this content, oldest first."""
        with self._lock:
            self._catch_up()
            return tuple(self._said.get(key, ()))

    def spent(self) -> tuple[int, int]:
        """Return how many replies are on record, and how many tokens they took."""
        with self._lock:
            self._catch_up()
            replies = [said for those in self._said.values() for said in those]
        return len(replies), sum(said.tokens for said in replies)

    def add(self, key: str, said: Said) -> None:
        """Append one reply and wait until it is on disk."""
        record = {"schema_version": SCHEMA_VERSION, "key": key, **asdict(said)}
        line = json.dumps(record, separators=(",", ":")).encode("ascii") + b"\n"
        with self._lock, self._alone():
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, 1, size - 1) != b"\n":
                line = b"\n" + line  # The line before was cut short; it shall not spoil this one.
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
    def _alone(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _catch_up(self) -> None:
        """Read the whole lines that were appended since the last look, by whomever."""
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
            self._said.setdefault(record.key, []).append(
                Said(
                    text=record.text,
                    finish=record.finish,
                    tokens=record.tokens,
                    fallbacks=tuple(record.fallbacks),
                )
            )


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    schema_version: int
    key: str
    text: str
    finish: str | None
    tokens: int
    fallbacks: list[str]
