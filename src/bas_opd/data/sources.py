"""Where source rows come from: JSONL, CSV, parquet, or the `datasets` library."""

from __future__ import annotations

import csv
import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bas_opd.data.records import numbered_lines, parse_object
from bas_opd.errors import DataError

_TABLES = (".jsonl", ".csv", ".parquet")
_BATCH_ROWS = 64
_DATASET_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")

RawRow = bytes | Mapping[str, Any]
"""A line of JSONL, not yet parsed so that a bad one can be set aside, or the fields of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A table of rows, and the folder its pictures must lie in (None: only inside the rows)."""

    name: str
    root: Path | None
    table: Path | None

    def rows(self) -> Iterator[tuple[int, RawRow]]:
        """Every row with its number, from 1 (in JSONL the number of its line)."""
        if self.table is None:
            return enumerate(_datasets_rows(self.name), 1)
        match self.table.suffix.lower():
            case ".jsonl":
                return numbered_lines(self.table)
            case ".csv":
                return enumerate(_csv_rows(self.table), 1)
            case _:
                return enumerate(_parquet_rows(self.table), 1)

    @property
    def may_be_absolute(self) -> bool:
        """Parquet and `datasets` rows name their files by absolute path when they are written."""
        return self.table is None or self.table.suffix.lower() == ".parquet"


def find_source(source: str) -> Source:
    """The source a user means by a file, a folder, or a dataset id."""
    path = Path(source)
    if path.is_file():
        if path.suffix.lower() not in _TABLES:
            raise DataError(f"{path} is not one of {', '.join(_TABLES)}. Convert it to one.")
        return Source(name=str(path), root=path.parent, table=path)
    if path.is_dir():
        table = _table_in(path)
        return Source(name=str(table or path), root=path, table=table)
    if path.suffix.lower() in _TABLES or not _DATASET_ID.fullmatch(source):
        raise DataError(f"{source} does not exist. Check the path.")
    return Source(name=source, root=None, table=None)


def fields_of(row: RawRow) -> Mapping[str, Any]:
    """The fields of a raw row."""
    return parse_object(row) if isinstance(row, bytes) else row


def _table_in(folder: Path) -> Path | None:
    """The table of a folder: `train` if there are several, JSONL before parquet as it says more."""
    for suffix in _TABLES:
        tables = sorted(folder.glob(f"*{suffix}"))
        train = [table for table in tables if table.stem == "train"]
        if len(train) == 1 or len(tables) == 1:
            return (train or tables)[0]
        if tables:
            names = ", ".join(table.name for table in tables[:5])
            raise DataError(f"{folder} holds several tables ({names}). Name the one to prepare.")
    return None


def _csv_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, strict=True, restkey="(beyond the last column)")
            columns = reader.fieldnames or []
            if len(set(columns)) < len(columns):
                raise DataError(f"{path} names a column twice. Rename or remove one of them.")
            yield from reader
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as CSV ({error}). Mend the file.") from error


def _parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    parquet = _optional("pyarrow.parquet", f"Reading {path}", "bas-opd[parquet]")
    try:
        with parquet.ParquetFile(path) as table:
            for batch in table.iter_batches(batch_size=_BATCH_ROWS):
                yield from batch.to_pylist()
    except (OSError, ValueError, NotImplementedError) as error:  # what pyarrow's errors are
        raise DataError(f"{path} cannot be read as parquet ({error}). Fetch it again.") from error


def _datasets_rows(name: str) -> Iterator[Mapping[str, Any]]:
    datasets = _optional("datasets", f"{name} is no table here; loading it by id", "datasets")
    try:
        loaded = datasets.load_dataset(name, split="train")
    # The library raises errors of a dozen kinds from network, hub and file readers alike.
    except Exception as error:
        raise DataError(
            f"The dataset {name} cannot be loaded ({error}). Check its name and the network, or "
            "download it and prepare the folder."
        ) from error
    # As arrow, pictures stay the stored bytes: none is opened outside our limits.
    for batch in loaded.with_format("arrow").iter(batch_size=_BATCH_ROWS):
        yield from batch.to_pylist()


def _optional(module: str, task: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(
            f"{task} needs a library that is not installed. Run `pip install '{package}'`."
        ) from error
