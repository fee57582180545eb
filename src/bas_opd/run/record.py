"""The records of a run: one JSON object a line, appended and never changed."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NoReturn

from bas_opd.errors import DataError

SCHEMA_VERSION = 1


class RecordWriter:
    """Appends events to a JSONL file; one that was written survives a crash of the machine.

    Each line ends with the hash of itself and of the line before, so that no line can change, go or
    come without a trace.
    """

    def __init__(self, path: Path, *, keep_bytes: int | None = None) -> None:
        """Go on after the first `keep_bytes` of the file, dropping the rest, or after all of it."""
        self._file = path.open("r+b" if path.exists() else "x+b")
        if keep_bytes is not None:
            self._file.truncate(keep_bytes)
        self._chain = _last_chain(self._file, path)
        self._file.seek(0, os.SEEK_END)

    @property
    def place(self) -> dict[str, Any]:
        """Where the records stand, as a checkpoint remembers it."""
        return {"records_bytes": self._file.tell(), "records_chain": self._chain}

    def write(self, event: Mapping[str, Any]) -> None:
        """Append one event and wait until it is on disk. NaN and infinities become null."""
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
    """Say whether a file still holds, line by line, the records up to a remembered place."""
    size, chain = 0, ""
    try:
        with path.open("rb") as file:
            while size < place["records_bytes"] and (line := file.readline()):
                _, chain = read_line(line, str(path), after=chain)
                size += len(line)
    except (OSError, DataError):
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
            event, chain = read_line(line, f"{path}:{number}", after=chain)
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
    try:
        event = json.loads(line, parse_constant=_refuse_constant)
    except ValueError as error:
        raise DataError(
            f"{where} is damaged: {error}. A line cut short by a crash can be removed; "
            "the lines before it are whole."
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
