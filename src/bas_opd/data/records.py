"""A prepared set: a folder with `records.jsonl`, its pictures, and `manifest.json`.

Loading opens no picture: it reads the rows, refuses paths outside the folder, and compares the
checksum of the records with the manifest. `check` also hashes and decodes the pictures.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from bas_opd.data.images import Box, Size, check_box, image_size
from bas_opd.errors import DataError, explain_failure
from bas_opd.files import file_hashes, sha256
from bas_opd.types import Crop, Example
from bas_opd.validation import explain

SCHEMA_VERSION = 1
RECORDS = "records.jsonl"
MANIFEST = "manifest.json"


def _writable(text: str) -> str:
    if "\0" in text:
        raise ValueError("it contains a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it contains half of a surrogate pair, which is not valid text") from None
    return text


Text = Annotated[str, AfterValidator(_writable)]


class CropRow(BaseModel):
    """The privileged view of a row: a box on its picture, or a separate picture."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    box: Box | None = None
    image: Text | None = None
    area: float | None = Field(None, ge=0, allow_inf_nan=False)
    """Crop area over full-image area; computed from the headers if absent."""

    @model_validator(mode="after")
    def _one_view(self) -> CropRow:
        if (self.box is None) == (self.image is None):
            raise ValueError("a crop has either a box or an image")
        return self


class Row(BaseModel):
    """One line of `records.jsonl`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Text = Field(min_length=1)
    image: Text
    crop: CropRow | None = None
    question: Text
    answer: Text = ""
    kind: Text = ""

    @field_validator("question")
    @classmethod
    def _asks_something(cls, question: str) -> str:
        if not question.strip():
            raise ValueError("it is blank")
        return question


class Manifest(BaseModel):
    """`manifest.json`: what the set contains, and the checksum of every file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int = SCHEMA_VERSION
    source: str
    view: str | None = None
    rows: int
    with_crop: int
    kinds: dict[str, int]
    rejected: int = 0
    records_sha256: str
    files: dict[str, str]
    """Picture, relative to the folder -> SHA-256."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSet:
    """The examples of a prepared set, in the order of its records."""

    folder: Path
    examples: tuple[Example, ...]
    fingerprint: str
    """SHA-256 of the records, which name pictures by the hash of their contents."""
    source: str = ""
    """What the set was prepared from."""
    pictures: Mapping[str, tuple[Path, str]] = field(default_factory=dict)
    """Name of each picture that a row uses -> its file, and its SHA-256 when it was prepared."""

    def __len__(self) -> int:
        return len(self.examples)

    @classmethod
    def load(cls, folder: Path) -> PreparedSet:
        """Read a prepared set; the error for a bad row names the row and the reason."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        records = folder / RECORDS
        fingerprint = checksum(records)
        is_as_prepared = fingerprint == manifest.records_sha256
        examples: dict[str, Example] = {}
        pictures: dict[str, Path] = {}
        folders: dict[str, str] = {}
        for number, line in numbered_lines(records):
            try:
                row = parse_row(line)
                # Unchanged records were measured when they were written.
                example = to_example(folder, row, measure=not is_as_prepared, folders=folders)
                if example.id in examples:
                    raise DataError(f"The id {example.id!r} is used twice. Use unique ids.")
            except DataError as reason:
                raise DataError(f"{records}, row {number}: {reason}") from reason
            examples[example.id] = example
            pictures[row.image] = example.image
            if row.crop is not None and row.crop.image is not None and example.crop is not None:
                pictures[row.crop.image] = example.crop.image or example.image
        if not is_as_prepared:
            raise DataError(
                f"{records} has changed since it was prepared: its checksum is not the one in "
                f"{MANIFEST}. Prepare the set again from its source."
            )
        if not examples:
            raise DataError(f"{records} has no rows. Prepare the set again from its source.")
        return cls(
            folder=folder,
            examples=tuple(examples.values()),
            fingerprint=fingerprint,
            source=manifest.source,
            pictures={
                name: (path, manifest.files.get(name, "")) for name, path in pictures.items()
            },
        )

    @property
    def prepared_hashes(self) -> dict[str, str]:
        """Picture -> SHA-256 when it was prepared."""
        return {name: digest for name, (_, digest) in self.pictures.items()}

    def picture_hashes(self, *, memory: Path | None = None) -> dict[str, str]:
        """Return picture -> SHA-256 now; hashes are kept in the file `memory`."""
        files = {name: path for name, (path, _) in self.pictures.items()}
        return file_hashes(files, memory=memory)


def grades_by_last_word(source: str) -> bool:
    """Return whether the answers of a set are graded by FineSearch's own rule, by its source."""
    return source.startswith("FineSearch")


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a prepared set."""
    path = folder / MANIFEST
    make = "Give the folder of a prepared set; `bas-opd data prepare SRC OUT` makes one."
    try:
        content = json.loads(path.read_bytes())
        version = content["schema_version"]
    except FileNotFoundError:
        if not folder.is_dir():
            raise DataError(f"There is no folder {folder}. {make}") from None
        raise DataError(f"{folder} is not a prepared set: it has no {MANIFEST}. {make}") from None
    except NotADirectoryError:
        raise DataError(f"{folder} is a file. {make}") from None
    except OSError as error:
        raise DataError(explain_failure(error)) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path} is damaged. Prepare the set again from its source.") from error
    if version != SCHEMA_VERSION:
        raise DataError(
            f"{path} has schema version {version!r}, but this program reads {SCHEMA_VERSION}. Use "
            "the version that wrote it, or prepare the set again."
        )
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        raise DataError(f"{path} is damaged: {explain(error)} Prepare the set again.") from error


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a JSONL file with their numbers from 1; blank lines are skipped."""
    with _read_errors_explained(path), path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                yield number, line


def parse_object(line: bytes) -> dict[str, Any]:
    """Parse one JSON object; a repeated field is an error."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            raise DataError("It has a field twice. Keep one of them.")
        return fields

    try:
        content = json.loads(line, object_pairs_hook=unique)
    except DataError:
        raise
    except (ValueError, RecursionError) as error:
        raise DataError(f"It is not valid JSON ({error}). The line may be truncated.") from error
    if not isinstance(content, dict):
        raise DataError("It is not a JSON object. Write one object with named fields per line.")
    return content


def parse_row(line: bytes) -> Row:
    """Parse and validate one line of the records."""
    content = parse_object(line)
    try:
        return Row.model_validate(content)
    except ValidationError as error:
        raise DataError(explain(error, Row.model_fields)) from error


def to_example(
    folder: Path, row: Row, *, measure: bool, folders: dict[str, str] | None = None
) -> Example:
    """Return the example of a row; `measure` checks the crop box against the picture's header.

    `folders` keeps what folders resolve to, see `confined`.
    """
    image, crop = confined(folder, row.image, folders=folders), None
    if row.crop is not None:
        picture = None
        if row.crop.image is not None:
            picture = confined(folder, row.crop.image, folders=folders)
        area = row.crop.area
        if measure or area is None:
            shape = row.crop.box if picture is None else image_size(picture)
            assert shape is not None  # `CropRow` has one of the two.
            area = crop_area(image_size(image), shape)
        crop = Crop(area=area, box=row.crop.box, image=picture)
    return Example(
        id=row.id,
        image=image,
        question=row.question,
        answer=row.answer,
        kind=row.kind,
        crop=crop,
    )


def crop_area(full: Size, crop: Box | Size) -> float:
    """Return the sixth feature: area of a box or a crop picture over full-image area (Eq. 5)."""
    if len(crop) == 2:
        width, height = crop
    else:
        check_box(crop, full)
        width, height = crop[2] - crop[0], crop[3] - crop[1]
    return width * height / (full[0] * full[1])


def confined(
    root: Path,
    name: str,
    *,
    absolute_inside: bool = False,
    folders: dict[str, str] | None = None,
) -> Path:
    """Return the file that a dataset names; it must be inside `root` after resolving links.

    An absolute path is an error even if it is inside, because the set could not be moved;
    `absolute_inside` allows it, for sources that are written that way. `folders` keeps what folders
    resolve to: a set has many files in a few.
    """
    if "://" in name or name.startswith(("data:", "file:")):
        raise DataError(f"{name[:80]!r} is a URL. Download the file and give its path.")
    if "\\" in name or "\0" in name or not name:
        raise DataError(f"{name!r} is not a path. Write it with forward slashes.")
    path = Path(name)
    if ".." in path.parts or (path.is_absolute() and not absolute_inside):
        raise DataError(
            f"The path {name!r} leads out of the data folder. Write it relative to that folder, "
            f"{root.absolute()}."
        )
    try:
        resolved = {} if folders is None else folders
        place = os.path.join(root, name)
        above = os.path.dirname(place)
        for folder in (str(root), above):
            if folder not in resolved:
                resolved[folder] = os.path.realpath(folder)
        home, target = resolved[str(root)], os.path.join(resolved[above], os.path.basename(place))
        if os.path.islink(target):
            target = os.path.realpath(target, strict=True)
        if not target.startswith(os.path.join(home, "")):
            raise DataError(
                f"The path {name!r} leads out of the data folder {root}. Copy the file into it."
            )
        if not os.path.isfile(target):
            raise DataError(
                f"There is no file {name!r} in {root.absolute()}. Restore it or drop the row."
            )
    except (OSError, RuntimeError) as error:  # the name is too long, or links form a loop
        raise DataError(
            f"The path {name[:80]!r} cannot be resolved ({error}). Correct it or drop the row."
        ) from error
    return Path(target)


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file of the set."""
    with _read_errors_explained(path):
        return sha256(path)


@contextmanager
def _read_errors_explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(explain_failure(error)) from error
