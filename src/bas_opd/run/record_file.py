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
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from bas_opd import disk
from bas_opd.errors import DataError

SCHEMA_VERSION = 1

STEP = b'{"schema_version":1,"event":"step",'
"""How the line of a step begins."""
TAIL = b',"chain":"%s"}\n'
"""How a line ends; the chain has 64 digits."""
ID = b'"run_id":"'
TAIL_BYTES = len(TAIL) - 2 + 64
BLOCK = 1 << 16


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
        run_id: str = "",
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Append after the first `keep_bytes`, dropping the rest, or after the whole file.

        Each record gets the id of the run; runs of version 0.1 have none. `check` raises if the
        file is no longer the run's; it is called before each event.
        """
        check()
        self._check = check
        self._id = {"run_id": run_id} if run_id else {}
        self._file = disk.OpenFile(path, "r+b" if path.exists() else "x+b")
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
        record = _finite({"schema_version": SCHEMA_VERSION, **event, **self._id})
        self._chain = chained(self._chain, record)
        self._file.write(_line({**record, "chain": self._chain}) + b"\n")
        self._file.sync()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def holds_place(path: Path, place: Mapping[str, Any]) -> bool:
    """Return whether a file still holds, line by line, the records up to a saved place."""
    end, chain = 0, ""
    try:
        for line in read_lines(path):
            if line.end > place["records_bytes"]:
                break
            end, chain = line.end, line.chain
    except (FileNotFoundError, DataError):
        pass  # What comes after the place may be a line cut short.
    return (end, chain) == (place["records_bytes"], place["records_chain"])


def chained(previous: str, record: Mapping[str, Any]) -> str:
    """Return the hash that ties a record, without its own `chain`, to the one before it."""
    return hashlib.sha256(previous.encode() + _line(record)).hexdigest()


def _line(record: Mapping[str, Any]) -> bytes:
    # ASCII keeps every text on one line and lets a broken character through unharmed.
    return json.dumps(record, allow_nan=False, separators=(",", ":")).encode("ascii")


def _last_chain(file: disk.OpenFile, path: Path) -> str:
    line = _line_before(file, file.seek(0, os.SEEK_END))
    if not line:
        return ""
    if not line.endswith(b"\n"):
        raise DataError(f"{path} ends in a line that was cut short. Remove that line.")
    return str(_parse(line, f"The last line of {path}")["chain"])


def _line_before(file: disk.OpenFile | BinaryIO, end: int) -> bytes:
    """Return the line that ends at a place of a file."""
    tail = b""
    while len(tail) < end and b"\n" not in tail[:-1]:
        start = max(0, end - 2 * len(tail) - BLOCK)
        file.seek(start)
        tail = file.read(end - start)
    return tail[tail.rfind(b"\n", 0, -1) + 1 :]


def claims_place(path: Path, place: Mapping[str, Any]) -> bool:
    """Return whether the line that ends at a saved place says that it does; no other is read."""
    if path.stat().st_size < place["records_bytes"]:
        return False
    with path.open("rb") as file:
        return _line_before(file, place["records_bytes"]).endswith(
            TAIL % str(place["records_chain"]).encode(errors="replace")
        )


class Line(NamedTuple):
    """A line of the records that follows from the one before it."""

    content: bytes
    path: Path
    number: int
    chain: str
    """That the next line follows from."""
    end: int
    """Bytes of the file up to its end."""

    @property
    def is_step(self) -> bool:
        """Whether it is known to be a step without parsing it."""
        return self.content.startswith(STEP)

    def is_of(self, run_id: str) -> bool:
        """Whether it is of this run so far as it says; a text that it quotes has escaped quotes."""
        return ID not in self.content or ID + run_id.encode() + b'"' in self.content

    def event(self) -> dict[str, Any]:
        """Return what it holds."""
        event = _parse(self.content, f"{self.path}:{self.number}")
        event.pop("chain", None)
        return event


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Every event of a file in order; a damaged or changed line is named, never skipped."""
    return (line.event() for line in read_lines(path))


def read_lines(path: Path) -> Iterator[Line]:
    """Yield every line of a file in order, none of them parsed without need."""
    chain, end = "", 0
    with path.open("rb") as file:
        for number, content in enumerate(file, start=1):
            end += len(content)
            try:
                chain = _chain_of(content, path, number, after=chain)
            except DataError as error:
                if content.endswith(b"\n"):
                    raise
                raise IncompleteLineError(str(error)) from None
            yield Line(content, path, number, chain, end)


def _chain_of(line: bytes, path: Path, number: int, *, after: str) -> str:
    """Return the chain of a line, or raise if it does not follow from the line before."""
    # Its bytes are those that were hashed when it was written: most lines need no parsing.
    digest = hashlib.sha256(after.encode())
    digest.update(memoryview(line)[:-TAIL_BYTES])
    digest.update(b"}")
    chain = digest.hexdigest()
    if line.endswith(TAIL % chain.encode()):
        return chain
    where = f"{path}:{number}"
    event = _load(line, where)
    claimed = event.pop("chain", None)
    try:
        chain = chained(after, event)
    except ValueError as error:  # 1e999 is JSON, but no number.
        raise _damaged(where, error) from None
    if claimed != chain:
        if claimed is None:
            _check_version(event, where)
        raise DataError(
            f"{where} does not follow from the line before it: one of the two was changed, "
            "removed or added after it was written."
        )
    return chain


def _parse(line: bytes, where: str) -> dict[str, Any]:
    event = _load(line, where)
    _check_version(event, where)
    return event


def _load(line: bytes, where: str) -> dict[str, Any]:
    if line.startswith(codecs.BOM_UTF8) or line.endswith(b"\r\n"):
        raise DataError(
            f"{where} was rewritten by another program, with a byte order mark or other line ends. "
            "Restore the file."
        )
    try:
        event = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _damaged(where, error) from None
    version = event.get("schema_version") if isinstance(event, dict) else None
    if type(version) is not int:
        raise DataError(f"{where} is no record of a run: it has no schema_version.")
    return event


def _check_version(event: Mapping[str, Any], where: str) -> None:
    if event["schema_version"] > SCHEMA_VERSION:
        raise DataError(
            f"{where} has schema version {event['schema_version']}, but this version of bas-opd "
            f"reads up to {SCHEMA_VERSION}. Install a newer bas-opd."
        )


def _damaged(where: str, error: Exception) -> DataError:
    return DataError(
        f"{where} is damaged: {error}. A line cut short by a crash can be removed; "
        "the lines before it are intact."
    )


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


class RecordFollower:
    """Reads complete lines as they are written, and detects a file that was truncated."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reset()

    def read(self) -> Iterator[Line | None]:
        """Yield the lines that were added; one that is still being written waits.

        None comes before the first line of the file, also when it is read again: a resumed run
        truncates its records.
        """
        if not self._path.exists():
            self._reset()
            yield None
            return
        if self._place:
            try:
                yield from self._added()
                return
            except DataError:  # What was read before is no longer in the file.
                self._reset()
        yield None
        yield from self._added()

    def _added(self) -> Iterator[Line]:
        with self._path.open("rb") as file:
            file.seek(self._place - len(self._last))
            if file.read(len(self._last)) != self._last:
                raise DataError(f"{self._path} was truncated.")
            while (content := file.readline()).endswith(b"\n"):
                number = self._lines + 1
                self._chain = _chain_of(content, self._path, number, after=self._chain)
                self._place += len(content)
                self._lines, self._last = number, content
                yield Line(content, self._path, number, self._chain, self._place)

    def _reset(self) -> None:
        self._place, self._lines, self._chain, self._last = 0, 0, "", b""
