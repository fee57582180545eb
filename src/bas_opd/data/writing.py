"""Write a prepared set atomically: build it in a staging folder, then rename it."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bas_opd import disk
from bas_opd.data.images import Size, decode_image
from bas_opd.data.records import MANIFEST, RECORDS, Manifest, Row
from bas_opd.errors import DataError
from bas_opd.files import sha256, staged_folder

_MAX_FILE_BYTES = 512 << 20  # a file is read into memory, so the bytes checked are those stored
_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")

Place = Literal["images", "crops"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPicture:
    """A picture in the set: its name there, its upright size, its SHA-256."""

    name: str
    size: Size
    digest: str


@dataclass(slots=True, kw_only=True)
class SetWriter:
    """A set that is being written in a staging folder."""

    folder: Path
    place: Path
    """Where the folder is moved when it is complete."""
    rows: dict[str, Row] = field(default_factory=dict)
    pictures: dict[str, StoredPicture] = field(default_factory=dict)

    def store(self, data: bytes, *, name: str, place: Place) -> StoredPicture:
        """Store a picture that decodes, named by the hash of its contents."""
        suffix = Path(name).suffix.lower()
        digest = hashlib.sha256(data).hexdigest()
        stored = f"{place}/{digest[:32]}{suffix if suffix in _SUFFIXES else ''}"
        if stored not in self.pictures:
            size = decode_image(data, name=name).size
            target = self.folder / stored
            disk.make_folder(target.parent, exist_ok=True)
            disk.write_file(target, data)
            self.pictures[stored] = StoredPicture(name=stored, size=size, digest=digest)
        return self.pictures[stored]

    def store_file(self, path: Path, *, place: Place) -> StoredPicture:
        """Copy a picture file into the set."""
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise DataError(
                f"The picture {path} is larger than {_MAX_FILE_BYTES >> 20} MiB. Shrink it or "
                "drop its row."
            )
        return self.store(path.read_bytes(), name=str(path), place=place)

    def add(self, row: Row) -> None:
        if row.id in self.rows:
            raise DataError(f"The id {row.id!r} is used twice. Use unique ids.")
        self.rows[row.id] = row

    def finish(self, *, source: str, view: str | None = None, rejected: int = 0) -> Manifest:
        """Write records and manifest, and return the latter; delete pictures that no row uses."""
        if not self.rows:
            raise DataError(f"{source} gives no rows, so no set was written. Check the source.")
        rows = list(self.rows.values())
        used = {row.image for row in rows} | {
            row.crop.image for row in rows if row.crop is not None and row.crop.image is not None
        }
        for name in self.pictures.keys() - used:
            disk.unlink(self.folder / name)
        records = self.folder / RECORDS
        disk.write_file(records, "".join(row.model_dump_json() + "\n" for row in rows))
        manifest = Manifest(
            source=source,
            view=view,
            rows=len(rows),
            with_crop=sum(row.crop is not None for row in rows),
            kinds=dict(sorted(Counter(row.kind for row in rows).items())),
            rejected=rejected,
            records_sha256=sha256(records),
            files={name: self.pictures[name].digest for name in sorted(used)},
        )
        disk.write_file(self.folder / MANIFEST, manifest.model_dump_json(indent=2) + "\n")
        return manifest


@contextmanager
def staged_set(out: Path) -> Iterator[SetWriter]:
    """Yield a writer whose folder becomes `out` on success and is removed on failure."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(
            f"{out} exists and is not an empty folder. Nothing was written. Choose another folder, "
            "or remove this one first."
        )
    try:
        with staged_folder(out) as staging:
            yield SetWriter(folder=staging, place=Path(os.path.abspath(out)))
    except OSError as error:
        raise DataError(
            f"The set could not be written to {out} ({error}). Nothing was left behind; check the "
            "free space and the permissions of its parent folder."
        ) from error
