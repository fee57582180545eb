"""The file of a run's records: one JSON object a line, appended and never changed.

This module owns its writer and its readers. It needs no torch.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NoReturn

from bas_opd.errors import DataError

SCHEMA_VERSION = 1


class IncompleteLineError(DataError):
    """The last line of the records is being written, or a kill cut it short."""


class RecordWriter:
    """Appends events to a JSONL file; one that was written survives a crash of the machine.

    Each line ends with the hash of itself and of the line before, so that no line can change, go or
    come without a trace.
    """

    def __init__(
        self,
        path: Path,
        *,
        keep_bytes: int | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Append after the first `keep_bytes`, dropping the rest, or after the whole file.

        `check` raises if the file is no longer the run's; it is called before each event.
        """
        check()
        self._check = check
        self._file = path.open("r+b" if path.exists() else "x+b")
        if keep_bytes is not None:
            self._file.truncate(keep_bytes)
        self._chain = _last_chain(self._file, path)
        self._file.seek(0, os.SEEK_END)

    @property
    def place(self) -> dict[str, Any]:
        """Size and chain of the records so far, as a checkpoint saves them."""
        return {"records_bytes": self._file.tell(), "records_chain": self._chain}

    def write(self, event: Mapping[str, Any]) -> None:
        """Append one event and wait until it is on disk. NaN and infinities become null."""
        self._check()
        record = _finite({"schema_version": SCHEMA_VERSION, **event})
        self._chain = chained(self._chain, record)
        self._file.write(_line({**record, "chain": self._chain}) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def holds_place(path: Path, place: Mapping[str, Any]) -> bool:
    """Return whether a file still holds, line by line, the records up to a saved place."""
    size, chain = 0, ""
    try:
        with path.open("rb") as file:
            while size < place["records_bytes"] and (line := file.readline()):
                _, chain = read_line(line, str(path), after=chain)
                size += len(line)
    except (FileNotFoundError, DataError):
        return False
    return (size, chain) == (place["records_bytes"], place["records_chain"])


def chained(previous: str, record: Mapping[str, Any]) -> str:
    """Return the hash that ties a record, without its own `chain`, to the one before it."""
    return hashlib.sha256(previous.encode() + _line(record)).hexdigest()


def _line(record: Mapping[str, Any]) -> bytes:
    # ASCII keeps every text on one line and lets a broken character through unharmed.
    return json.dumps(record, allow_nan=False, separators=(",", ":")).encode("ascii")


def _last_chain(file: BinaryIO, path: Path) -> str:
    file.seek(0)
    lines = file.read().splitlines(keepends=True)
    if not lines:
        return ""
    if not lines[-1].endswith(b"\n"):
        raise DataError(f"{path} ends in a line that was cut short. Remove that line.")
    return str(_parse(lines[-1], f"{path}:{len(lines)}")["chain"])


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Every event of a file in order; a damaged or changed line is named, never skipped."""
    chain = ""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                event, chain = read_line(line, f"{path}:{number}", after=chain)
            except DataError as error:
                if line.endswith(b"\n"):
                    raise
                raise IncompleteLineError(str(error)) from None
            yield event


def read_line(line: bytes, where: str, *, after: str) -> tuple[dict[str, Any], str]:
    """Return the event of a line, and the chain that the next one follows from."""
    event = _parse(line, where)
    claimed, chain = event.pop("chain", None), chained(after, event)
    if claimed != chain:
        raise DataError(
            f"{where} does not follow from the line before it: one of the two was changed, "
            "removed or added after it was written."
        )
    return event, chain


def _parse(line: bytes, where: str) -> dict[str, Any]:
    if line.startswith(codecs.BOM_UTF8) or line.endswith(b"\r\n"):
        raise DataError(
            f"{where} was rewritten by another program, with a byte order mark or other line ends. "
            "Restore the file."
        )
    try:
        event = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where} is damaged: {error}. A line cut short by a crash can be removed; "
            "the lines before it are intact."
        ) from None
    version = event.get("schema_version") if isinstance(event, dict) else None
    if type(version) is not int:
        raise DataError(f"{where} is no record of a run: it has no schema_version.")
    if version > SCHEMA_VERSION:
        raise DataError(
            f"{where} has schema version {version}, but this version of bas-opd reads up to "
            f"{SCHEMA_VERSION}. Install a newer bas-opd."
        )
    return event


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(value: Any) -> Any:
    """The same value with null in place of every number that JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What was added to the records since they were last read."""

    from_start: bool
    """Whether these are the records from the first line on: a resumed run truncates its file."""
    events: tuple[dict[str, Any], ...]


class RecordFollower:
    """Reads complete lines as they are written, and detects a file that was truncated."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reset()

    def read(self) -> News:
        """Return the events that were added; a line that is still being written waits."""
        if not self._path.exists():
            self._reset()
            return News(from_start=True, events=())
        from_start = self._place == 0
        try:
            return News(from_start=from_start, events=self._added())
        except DataError:
            if from_start:
                raise
        # What was read before is no longer in the file.
        self._reset()
        return News(from_start=True, events=self._added())

    def _added(self) -> tuple[dict[str, Any], ...]:
        events = []
        with self._path.open("rb") as file:
            file.seek(self._place - len(self._last))
            if file.read(len(self._last)) != self._last:
                raise DataError(f"{self._path} was truncated.")
            while (line := file.readline()).endswith(b"\n"):
                where = f"{self._path}:{self._lines + 1}"
                event, self._chain = read_line(line, where, after=self._chain)
                self._place += len(line)
                self._lines += 1
                self._last = line
                events.append(event)
        return tuple(events)

    def _reset(self) -> None:
        self._place, self._lines, self._chain, self._last = 0, 0, "", b""
