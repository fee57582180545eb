"""Read source rows from JSONL, CSV, parquet, or the `datasets` library."""

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
_DATASET_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_SECONDS = 10

RawRow = bytes | Mapping[str, Any]
"""An unparsed line of JSONL, so that a bad one can be rejected alone, or the fields of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A table of rows, and the folder of its pictures (None: pictures are bytes in the rows)."""

    name: str
    root: Path | None
    table: Path | None

    def rows(self) -> Iterator[tuple[int, RawRow]]:
        """Yield every row with its number from 1; in JSONL, the line number."""
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
        """Return whether rows may use absolute paths, as parquet and `datasets` writers do."""
        return self.table is None or self.table.suffix.lower() == ".parquet"


def find_source(source: str) -> Source:
    """Return the source for a file, a folder, or a dataset id."""
    path = Path(source)
    if path.is_file():
        if path.suffix.lower() not in _TABLES:
            raise DataError(f"{path} is not one of {', '.join(_TABLES)}. Convert it to one.")
        return Source(name=str(path), root=path.parent, table=path)
    if path.is_dir():
        table = _table_in(path)
        return Source(name=str(table or path), root=path, table=table)
    is_id = _DATASET_ID.fullmatch(source) and not path.parent.is_dir()
    if path.suffix.lower() in _TABLES or not is_id:
        raise DataError(
            f"{source} does not exist. Check the path; a dataset of the hub is named OWNER/NAME."
        )
    return Source(name=source, root=None, table=None)


def fields_of(row: RawRow) -> Mapping[str, Any]:
    """Return the fields of a raw row."""
    return parse_object(row) if isinstance(row, bytes) else row


def _table_in(folder: Path) -> Path | None:
    """Return the table in a folder: `train` if there are several; JSONL first, as it says more."""
    for suffix in _TABLES:
        tables = sorted(folder.glob(f"*{suffix}"))
        train = [table for table in tables if table.stem == "train"]
        if len(train) == 1 or len(tables) == 1:
            return (train or tables)[0]
        if tables:
            names = ", ".join(table.name for table in tables[:5])
            raise DataError(f"{folder} contains several tables ({names}). Give the path of one.")
    return None


def _csv_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, strict=True, restkey="(beyond the last column)")
            columns = reader.fieldnames or []
            if len(set(columns)) < len(columns):
                raise DataError(f"{path} has a column twice. Rename or remove one of them.")
            yield from reader
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as CSV ({error}). Correct the file.") from error


def _parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    parquet = _optional("pyarrow.parquet", f"Reading {path}", "pyarrow")
    try:
        with parquet.ParquetFile(path) as table:
            for batch in table.iter_batches(batch_size=_BATCH_ROWS):
                yield from batch.to_pylist()
    except (OSError, ValueError, NotImplementedError) as error:  # bases of pyarrow's errors
        raise DataError(f"{path} cannot be read as parquet ({error}). Replace it.") from error


def _datasets_rows(name: str) -> Iterator[Mapping[str, Any]]:
    datasets = _optional("datasets", f"{name} is not a local file; loading it by id", "datasets")
    if not Path(name).exists():
        _check_hub(name)
    try:
        loaded = datasets.load_dataset(name, split="train")
    # The library raises many kinds of errors, from network, hub and file readers.
    except Exception as error:
        raise DataError(
            f"The dataset {name} cannot be loaded ({error}). Check its name and the network, or "
            "download it and prepare the folder."
        ) from error
    # In arrow format pictures stay bytes, so none is opened outside our limits.
    for batch in loaded.with_format("arrow").iter(batch_size=_BATCH_ROWS):
        yield from batch.to_pylist()


def _check_hub(name: str) -> None:
    """Ask the hub for a dataset once: loading one that it lacks would retry for half a minute."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import OfflineModeIsEnabled, RepositoryNotFoundError

    try:
        HfApi().dataset_info(name, timeout=_HUB_SECONDS)
    except OfflineModeIsEnabled:
        return  # it may be in the cache
    except RepositoryNotFoundError as error:
        raise DataError(
            f"There is no file or folder {name}, and no dataset of that name on the hub. Check the "
            "name; for a private dataset, log in with `hf auth login`."
        ) from error
    except Exception as error:
        raise DataError(
            f"There is no file or folder {name}, and the hub cannot be asked for a dataset of that "
            f"name ({error}). Check the path or the network; set HF_HUB_OFFLINE=1 to load it from "
            "the cache."
        ) from error


def _optional(module: str, task: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(
            f"{task} needs a library that is not installed. Run `pip install '{package}'`."
        ) from error
