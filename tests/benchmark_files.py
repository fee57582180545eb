"""Small files in the layouts in which benchmarks are published."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

Rows = Sequence[Mapping[str, Any]]


def png(colour: str = "red", size: tuple[int, int] = (4, 3)) -> bytes:
    """A tiny picture."""
    stream = io.BytesIO()
    Image.new("RGB", size, colour).save(stream, "PNG")
    return stream.getvalue()


def stored(data: bytes) -> dict[str, Any]:
    """A picture as the hub's parquet files hold it."""
    return {"bytes": data, "path": "somewhere.png"}


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def write_file(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def write_parquet(path: Path, rows: Rows, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path, **options)
    return path


def write_lines(path: Path, rows: Rows) -> Path:
    return write_file(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def write_table(path: Path, rows: Rows, *, delimiter: str = ",") -> Path:
    """A CSV or TSV file, quoted only where it must be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), delimiter=delimiter, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path
