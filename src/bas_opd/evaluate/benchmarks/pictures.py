"""Pictures of a benchmark, read from disk when a question is asked."""

from __future__ import annotations

import base64
import binascii
import hashlib
import importlib
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Any

from bas_opd.data.records import confined
from bas_opd.errors import DataError

_SKETCH_BYTES = 1 << 16


def inside(folder: Path, name: str) -> Path:
    """Return the file that a benchmark names, which must be inside its folder.

    In the hub's own cache a snapshot is a folder of links into the blobs beside it; those belong
    to the snapshot.
    """
    folder = folder.absolute()
    repository = folder.parent.parent
    if folder.parent.name == "snapshots" and (repository / "blobs").is_dir():
        return confined(repository, f"snapshots/{folder.name}/{name}")
    return confined(folder, name)


def sketch(path: Path) -> str:
    """Return a hash of a file's size, beginning and end: enough to notice that it was replaced.

    A parquet file ends with the sizes and offsets of everything in it, and a compressed picture
    that changes anywhere changes at its end too. Gigabytes need not be read.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            digest = hashlib.sha256(f"{size}\0".encode() + stream.read(_SKETCH_BYTES))
            stream.seek(max(stream.tell(), size - _SKETCH_BYTES))
            digest.update(stream.read())
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from error
    return digest.hexdigest()


def read_file(path: Path) -> bytes:
    """Return the bytes of a picture file; whoever decodes them checks them."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"The picture {path} cannot be read ({error.strerror}).") from error


def read_cell(cell: Any, *, where: str, folder: Path) -> bytes:
    """Return the picture in a cell: bytes, base64, or bytes or a path under those names."""
    if isinstance(cell, dict):
        if cell.get("bytes") is None and isinstance(cell.get("path"), str):
            return read_file(inside(folder, cell["path"]))
        cell = cell.get("bytes")
    if isinstance(cell, str):
        try:
            # Line breaks every 76 letters are common; other characters outside base64 are errors.
            cell = base64.b64decode("".join(cell.split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise DataError(
                f"{where}: The picture is not valid base64 ({error}). Fetch the file again."
            ) from error
    if not isinstance(cell, bytes) or not cell:
        raise DataError(f"{where}: There is no picture in the row. Fetch the file again.")
    return cell


class ParquetColumn:
    """The cells of a column, of which one row group at a time is kept in memory."""

    def __init__(self, path: Path, name: str, rows_per_group: list[int]) -> None:
        self._path, self._name = path, name
        self._ends = list(accumulate(rows_per_group))
        self._lock = Lock()
        self._group, self._cells = -1, None

    def cell(self, row: int) -> Any:
        """Return one cell, by the number of its row from 0; any thread may ask."""
        group = bisect_right(self._ends, row)
        start = self._ends[group - 1] if group else 0
        with self._lock:
            if self._cells is None or group != self._group:
                self._cells = None  # before the next one is read, to hold one at most
                self._cells = with_parquet(self._path, lambda file: self._column(file, group))
                self._group = group
            return self._cells[row - start].as_py()

    def _column(self, file: Any, group: int) -> Any:
        return file.read_row_group(group, columns=[self._name]).column(self._name)


def with_parquet(path: Path, use: Callable[[Any], Any]) -> Any:
    """Open a parquet file, and return what `use` takes from it."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise DataError(
            f"Reading {path} needs a library that is not installed. Run `pip install pyarrow`."
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            return use(file)
    except DataError:
        raise
    except (OSError, ValueError, NotImplementedError) as error:  # what pyarrow's errors are
        raise DataError(f"{path} cannot be read as parquet ({error}). Fetch it again.") from error
