"""TSV files with pictures in their cells.

The standard reader refuses cells as long as a picture, unless the whole process allows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bas_opd.errors import DataError

_CELL = re.compile(r'\t("(?:[^"]++|"")*+"(?=\t|\Z)|[^\t]*)')
"""A cell and the tab before it; a quoted cell may hold tabs, line breaks and doubled quotes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TsvRecord:
    """The cells of one record, and its position in the file."""

    start: int
    length: int
    cells: list[str]


def tsv_records(table: Path) -> Iterator[TsvRecord]:
    """Every record, the header first: lines are joined until all quotes are closed."""
    try:
        with table.open("rb") as stream:
            start, held, quotes = 0, bytearray(), 0
            for line in stream:
                held += line
                quotes += line.count(b'"')
                if quotes % 2 == 0:
                    if held.strip():
                        yield TsvRecord(start=start, length=len(held), cells=_cells(held, start))
                    start, held = start + len(held), bytearray()
            if held:
                raise DataError(f"{table} ends inside quotes. It was cut short: fetch it again.")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{table} cannot be read as TSV ({error}). Fetch it again.") from error


def tsv_cell(table: Path, start: int, length: int, place: int) -> str:
    """Return one cell of a record at a known position."""
    try:
        with table.open("rb") as stream:
            stream.seek(start)
            return _cells(stream.read(length), start)[place]
    except (OSError, UnicodeDecodeError, IndexError) as error:
        raise DataError(f"{table} has changed since it was read ({error}).") from error


def _cells(record: bytes | bytearray, start: int) -> list[str]:
    text = record.decode("utf-8-sig" if start == 0 else "utf-8").rstrip("\r\n")
    return [
        cell[1:-1].replace('""', '"') if len(cell) > 1 and cell[0] == cell[-1] == '"' else cell
        for cell in _CELL.findall(f"\t{text}")
    ]
