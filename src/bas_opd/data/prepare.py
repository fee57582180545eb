"""Convert a released or custom source into a prepared set."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bas_opd.data.images import Size, whole_pixels
from bas_opd.data.layouts import Draft, Picture, View, read_row
from bas_opd.data.lengths import PromptLength, check_prompt
from bas_opd.data.records import CropRow, Row, confined, crop_area, explain
from bas_opd.data.sources import RawRow, Source, fields_of, find_source
from bas_opd.data.writing import Place, SetWriter, StoredPicture, staged_set
from bas_opd.errors import DataError
from bas_opd.files import write_text

REJECTED = "rejected.jsonl"
MAX_PROMPT_TOKENS = 8192
"""The longest prompt, image tokens included (Sec. 3.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Counts of a set that was prepared."""

    folder: Path
    rows: int
    with_crop: int
    rejected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A rejected row and the reason."""

    row: int
    reason: str
    source: RawRow

    def line(self) -> str:
        source = self.source
        shown = source.decode(errors="replace") if isinstance(source, bytes) else source
        content = {"row": self.row, "reason": self.reason, "source": shown}
        return json.dumps(content, default=_described) + "\n"


def prepare(
    source: str,
    out: Path,
    *,
    view: View = "boxed",
    limit: int | None = None,
    quarantine: bool = False,
    prompt_length: PromptLength | None = None,
    max_prompt_tokens: int = MAX_PROMPT_TOKENS,
    on_row: Callable[[int], None] = lambda done: None,
) -> Prepared:
    """Write a prepared set from the first `limit` rows of a source.

    The first bad row is an error, and nothing is written. With `quarantine`, bad rows go to
    `rejected.jsonl` with their reasons. If more than 1 % of the rows are bad, it is an error all
    the same, and the list is written beside `out`.
    """
    origin = find_source(source)
    rejections: list[Rejection] = []
    done = 0
    with staged_set(out) as writer:
        for done, (number, raw) in enumerate(islice(origin.rows(), limit), 1):
            try:
                draft = read_row(fields_of(raw), view)
                row, sizes = _stored(draft, number, origin, writer)
                if prompt_length is not None:
                    check_prompt(row.question, sizes, prompt_length, max_prompt_tokens)
                writer.add(row)
            except DataError as reason:
                if not quarantine:
                    raise DataError(f"{origin.name}, row {number}: {reason}") from reason
                rejections.append(Rejection(row=number, reason=str(reason), source=raw))
            on_row(done)
        if len(rejections) * 100 > done:
            _stop(rejections, done, writer.place, origin)
        if rejections:
            _write_rejections(rejections, writer.folder / REJECTED)
        writer.finish(source=origin.name, view=view, rejected=len(rejections))
    return Prepared(
        folder=out,
        rows=len(writer.rows),
        with_crop=sum(row.crop is not None for row in writer.rows.values()),
        rejected=len(rejections),
    )


def _stored(
    draft: Draft, number: int, origin: Source, writer: SetWriter
) -> tuple[Row, tuple[Size, ...]]:
    """Store the pictures of a draft; return its record and the sizes of its views."""
    image = _store(draft.image, origin, writer, "images")
    sizes, crop = (image.size,), None
    if draft.crop is not None:
        picture = _store(draft.crop, origin, writer, "crops")
        area = crop_area(image.size, picture=picture.size)
        sizes, crop = (image.size, picture.size), CropRow(image=picture.name, area=area)
    elif draft.box is not None:
        area = crop_area(image.size, box=draft.box)
        x0, y0, x1, y1 = whole_pixels(draft.box)
        sizes, crop = (image.size, (x1 - x0, y1 - y0)), CropRow(box=draft.box, area=area)
    try:
        row = Row(
            id=draft.id if draft.id is not None else f"{number:06d}",
            image=image.name,
            crop=crop,
            question=draft.question,
            answer=draft.answer,
            kind=draft.kind,
        )
    except ValidationError as error:
        raise DataError(explain(error)) from error
    return row, sizes


def _store(picture: Picture, origin: Source, writer: SetWriter, place: Place) -> StoredPicture:
    if picture.data is not None:
        return writer.store(picture.data, name=picture.path or "inside the row", place=place)
    if picture.path is None:
        raise DataError("Its picture has neither a path nor bytes. Add one, or drop the row.")
    if origin.root is None:
        raise DataError(
            f"Its picture is a path, {picture.path!r}, but the dataset does not contain the file. "
            "Download the dataset's files, unpack its archives, and prepare that folder."
        )
    path = confined(origin.root, picture.path, absolute_inside=origin.may_be_absolute)
    return writer.store_file(path, place=place)


def _stop(rejections: list[Rejection], rows: int, place: Path, origin: Source) -> None:
    report = place.with_name(f"{place.name}.{REJECTED}")
    _write_rejections(rejections, report)
    first = rejections[0]
    raise DataError(
        f"{len(rejections)} of {rows} rows of {origin.name} are bad, more than 1 %, so no set was "
        f"written. The first is row {first.row}: {first.reason} All are listed in {report}."
    )


def _write_rejections(rejections: list[Rejection], path: Path) -> None:
    write_text(path, "".join(rejection.line() for rejection in rejections))


def _described(value: Any) -> str:
    return f"({len(value)} bytes)" if isinstance(value, bytes) else str(value)
