"""The records of a run: one JSON object a line, appended and never changed."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from bas_opd.errors import DataError

SCHEMA_VERSION = 1


class RecordWriter:
    """Appends events to a JSONL file; one that was written survives a crash of the machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab")

    def write(self, event: Mapping[str, Any]) -> None:
        """Append one event and wait until it is on disk. NaN and infinities become null."""
        record = _finite({"schema_version": SCHEMA_VERSION, **event})
        # ASCII keeps every text on one line and lets a broken character through unharmed.
        line = json.dumps(record, allow_nan=False, separators=(",", ":"))
        self._file.write(line.encode("ascii") + b"\n")
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


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Every event of a file in order; a damaged line is named, never skipped."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            yield _parse(line, f"{path}:{number}")


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
