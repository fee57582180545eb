"""Convert a released or custom source into a prepared set."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bas_opd.data.images import Size, box_size
from bas_opd.data.layouts import Draft, Picture, View, read_row
from bas_opd.data.records import CropRow, Manifest, Row, confined, crop_area, explain
from bas_opd.data.sources import Source, fields_of, find_source
from bas_opd.data.views import PromptLength, check_prompt
from bas_opd.data.writing import Place, SetWriter, StoredPicture, staged_set
from bas_opd.errors import DataError
from bas_opd.files import write_text

REJECTED = "rejected.jsonl"
MAX_PROMPT_TOKENS = 8192
"""The longest prompt, image tokens included (Sec. 3.1)."""


def prepare(
    source: str,
    out: Path,
    *,
    view: View = "boxed",
    limit: int | None = None,
    quarantine: bool = False,
    prompt_length: PromptLength | None = None,
    max_prompt_tokens: int = MAX_PROMPT_TOKENS,
    on_row: Callable[[], None] = lambda: None,
) -> Manifest:
    """Write a prepared set from the first `limit` rows of a source; return its manifest.

    The first bad row is an error, and nothing is written. With `quarantine`, bad rows go to
    `rejected.jsonl` with their reasons. If more than 1 % of the rows are bad, it is an error all
    the same, and the list is written beside `out`.
    """
    origin = find_source(source)
    rejections: list[dict[str, Any]] = []
    with staged_set(out) as writer:
        for number, raw in islice(origin.rows(), limit):
            try:
                draft = read_row(fields_of(raw), view)
                row, sizes = _stored(draft, number, origin, writer)
                if prompt_length is not None:
                    check_prompt(row.question, sizes, prompt_length, max_prompt_tokens)
                writer.add(row)
            except DataError as reason:
                if not quarantine:
                    raise DataError(f"{origin.name}, row {number}: {reason}") from reason
                shown = raw.decode(errors="replace") if isinstance(raw, bytes) else raw
                rejections.append({"row": number, "reason": str(reason), "source": shown})
            on_row()
        read = len(writer.rows) + len(rejections)
        if len(rejections) * 100 > read:
            report = writer.place.with_name(f"{writer.place.name}.{REJECTED}")
            _write_rejections(rejections, report)
            first = rejections[0]
            raise DataError(
                f"{len(rejections)} of {read} rows of {origin.name} are bad, more than 1 %, so no "
                f"set was written. The first is row {first['row']}: {first['reason']} All are "
                f"listed in {report}."
            )
        if rejections:
            _write_rejections(rejections, writer.folder / REJECTED)
        return writer.finish(source=origin.name, view=view, rejected=len(rejections))


def _stored(
    draft: Draft, number: int, origin: Source, writer: SetWriter
) -> tuple[Row, tuple[Size, ...]]:
    """Store the pictures of a draft; return its record and the sizes of its views."""
    image = _store(draft.image, origin, writer, "images")
    sizes, crop = (image.size,), None
    if draft.crop is not None:
        picture = _store(draft.crop, origin, writer, "crops")
        sizes += (picture.size,)
        crop = CropRow(image=picture.name, area=crop_area(image.size, picture.size))
    elif draft.box is not None:
        crop = CropRow(box=draft.box, area=crop_area(image.size, draft.box))
        sizes += (box_size(draft.box),)
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


def _write_rejections(rejections: list[dict[str, Any]], path: Path) -> None:
    write_text(path, "".join(json.dumps(each, default=_described) + "\n" for each in rejections))


def _described(value: Any) -> str:
    return f"({len(value)} bytes)" if isinstance(value, bytes) else str(value)
