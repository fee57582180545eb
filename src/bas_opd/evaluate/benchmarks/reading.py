"""Rows of a benchmark, from any of the layouts in which it is distributed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from bas_opd.data.records import numbered_lines
from bas_opd.data.sources import Source, fields_of
from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks.pictures import (
    ParquetColumn,
    inside,
    read_cell,
    read_file,
    sketch,
    with_parquet,
)
from bas_opd.evaluate.benchmarks.tsv import tsv_cell, tsv_records
from bas_opd.evaluate.questions import Picture


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One row of a benchmark's table."""

    where: str
    """File and row, for errors."""
    table: str
    """The name of the file without its ending."""
    number: int
    """The row in its file, from 1."""
    cells: Mapping[str, Any]
    picture: Picture
    sketch: str
    """What is known of the picture's content without reading all of it."""

    def text(self, *names: str) -> str:
        """Return the text of the first of these columns that there is; a blank one is refused."""
        found = self.optional(*names)
        if not found:
            raise self.refused(f"Its {' or '.join(names)} is missing or blank.")
        return found

    def optional(self, *names: str) -> str:
        """Return the text of the first of these columns that is filled in, or none at all."""
        values = (self.cells.get(name) for name in names)
        texts = (str(value).strip() for value in values if value is not None)
        return next(filter(None, texts), "")

    @property
    def address(self) -> str:
        """What identifies a row that has no id of its own."""
        return f"{self.table}-{self.number}"

    def refused(self, reason: str) -> DataError:
        """Return the error that says why this row cannot be used."""
        return DataError(f"{self.where}: {reason} Fetch the benchmark again, or fix the row.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One layout of a benchmark in a folder."""

    tables: tuple[str, ...]
    """Patterns of its tables; all that match are read, in the order of their names."""
    columns: tuple[tuple[str, ...], ...]
    """Columns that must be there; of each tuple, one."""
    picture: tuple[str, ...] = ("image",)
    """The column with the picture: its content, or the name of its file; the first there is."""
    places: tuple[str, ...] = ()
    """Paths of a named picture, as in `val2014/{}`; empty: the column holds the content."""


_Row = tuple[int, Mapping[str, Any], Picture, str]
"""Number, cells, picture and sketch."""


def read_records(folder: Path, layouts: Sequence[Layout]) -> list[Record]:
    """Return the rows of the first layout whose tables the folder has; none if it has none."""
    for layout in layouts:
        names = {
            path.relative_to(folder).as_posix()
            for pattern in layout.tables
            for path in folder.glob(pattern)
        }
        if names:
            return [record for name in sorted(names) for record in _records(folder, name, layout)]
    return []


def _records(folder: Path, name: str, layout: Layout) -> Iterator[Record]:
    inside(folder, name)
    table = folder / name
    read = _naming if layout.places else _holding
    for number, cells, picture, content in read(folder, table, layout):
        yield Record(
            where=f"{table}, row {number}",
            table=table.stem,
            number=number,
            cells=cells,
            picture=picture,
            sketch=content,
        )


def _naming(folder: Path, table: Path, layout: Layout) -> Iterator[_Row]:
    """Read a table that names its pictures: CSV, or JSON lines under any file name."""
    if table.suffix == ".csv":
        rows = Source(name=str(table), root=None, table=table).rows()
    else:
        rows = numbered_lines(table)
    # Many questions may be about one picture.
    located, known = cache(partial(_located, folder, layout.places)), cache(sketch)
    for number, row in rows:
        try:
            cells = fields_of(row)
            _check_columns(cells, layout)
            path = located(str(cells[_picture(cells, layout)]))
        except DataError as reason:
            raise DataError(f"{table}, row {number}: {reason}") from reason
        yield number, cells, Picture(partial(read_file, path), name=str(path)), known(path)


def _located(folder: Path, places: tuple[str, ...], name: str) -> Path:
    """Return the first existing file among the possible paths of a picture."""
    reasons = []
    for place in places:
        try:
            return inside(folder, place.format(name))
        except DataError as reason:
            reasons.append(reason)
    raise reasons[0]


def _holding(folder: Path, table: Path, layout: Layout) -> Iterator[_Row]:
    """Read the texts of a table; its pictures stay there until they are asked for."""
    content = sketch(table)
    rows = _tsv(table, layout) if table.suffix == ".tsv" else _parquet(table, layout)
    for number, (cells, cell) in enumerate(rows, 1):
        where = f"{table}, row {number}"
        picture = Picture(partial(_opened, cell, where, folder), name=f"in {where}")
        yield number, cells, picture, content


def _opened(cell: Callable[[], Any], where: str, folder: Path) -> bytes:
    return read_cell(cell(), where=where, folder=folder)


def _parquet(table: Path, layout: Layout) -> Iterator[tuple[Mapping[str, Any], Callable[[], Any]]]:
    def read(file: Any) -> tuple[list[dict[str, Any]], ParquetColumn]:
        schema, groups = file.schema_arrow, file.metadata
        _check_columns(schema.names, layout, where=f"{table}: ")
        texts = [
            field.name
            for field in schema
            if field.name not in layout.picture and not _is_content(str(field.type))
        ]
        counts = [groups.row_group(place).num_rows for place in range(groups.num_row_groups)]
        picture = _picture(schema.names, layout)
        return file.read(columns=texts).to_pylist(), ParquetColumn(table, picture, counts)

    rows, pictures = with_parquet(table, read)
    for place, cells in enumerate(rows):
        yield cells, partial(pictures.cell, place)


def _is_content(kind: str) -> bool:
    """Return whether a column type is that of pictures and other nested things."""
    return kind.startswith(("struct", "binary", "large_binary"))


def _tsv(table: Path, layout: Layout) -> Iterator[tuple[Mapping[str, Any], Callable[[], Any]]]:
    records = tsv_records(table)
    header = next(records, None)
    if header is None:
        return
    _check_columns(header.cells, layout, where=f"{table}: ")
    picture = _picture(header.cells, layout)
    place = header.cells.index(picture)
    for number, record in enumerate(records, 1):
        if len(record.cells) != len(header.cells):
            raise DataError(
                f"{table}, row {number}: It has {len(record.cells)} cells under "
                f"{len(header.cells)} columns. Fetch the file again."
            )
        cells = dict(zip(header.cells, record.cells, strict=True))
        del cells[picture]
        yield cells, partial(tsv_cell, table, record.start, record.length, place)


def _picture(names: Collection[str], layout: Layout) -> str:
    """Return the column with the picture, of a table that was seen to have one."""
    return next(name for name in layout.picture if name in names)


def _check_columns(names: Collection[str], layout: Layout, *, where: str = "") -> None:
    for alternatives in (*layout.columns, layout.picture):
        if not any(name in names for name in alternatives):
            raise DataError(
                f"{where}There is no column {' or '.join(alternatives)}, only {', '.join(names)}. "
                "This is another revision or another dataset: fetch the one that is named."
            )
