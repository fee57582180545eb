"""Convert a released or custom source into a prepared set.

Source rows have one of three layouts: the two released Vision-OPD-6K forms, or that of plain tables
with boxes, to which the others are converted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from bas_opd.data.images import Box, Size, box_size
from bas_opd.data.records import CropRow, Manifest, Row, confined, crop_area
from bas_opd.data.sources import Source, fields_of, find_source
from bas_opd.data.views import PromptLength, check_prompt
from bas_opd.data.writing import Place, SetWriter, StoredPicture, staged_set
from bas_opd.errors import DataError
from bas_opd.files import write_text
from bas_opd.validation import explain

REJECTED = "rejected.jsonl"
MAX_PROMPT_TOKENS = 8192
"""The longest prompt, image tokens included (Sec. 3.1)."""

View = Literal["boxed", "clean"]
_MARKER = "<image>"
_EDGES = ("x0", "y0", "x1", "y1")


class Picture(BaseModel):
    """A picture in a source row: a path, the bytes, or both."""

    model_config = ConfigDict(frozen=True)

    path: str | None = None
    data: bytes | None = Field(default=None, validation_alias="bytes")


def _path_or_picture(value: Any) -> Any:
    if isinstance(value, str):
        return {"path": value}
    if not isinstance(value, (Mapping, Picture)):
        raise ValueError(f"{str(value)[:80]!r} is neither a path nor an object with path or bytes")
    return value


def _four_numbers(value: Any) -> Any:
    """Return the numbers of a box; text has them with or without brackets."""
    numbers = value
    if isinstance(value, str):
        try:
            numbers = json.loads(f"[{value.strip().removeprefix('[').removesuffix(']')}]")
        except (ValueError, RecursionError):
            raise ValueError(f"{value[:80]!r} is not written as x0,y0,x1,y1") from None
    if not isinstance(numbers, (list, tuple)) or len(numbers) != 4:
        raise ValueError(f"{str(value)[:80]!r} does not have four numbers x0,y0,x1,y1")
    return numbers


AnyPicture = Annotated[Picture, BeforeValidator(_path_or_picture)]
AnyBox = Annotated[Box, BeforeValidator(_four_numbers)]
TextOrNumber = Annotated[str, Field(coerce_numbers_to_str=True)]


class Draft(BaseModel):
    """A source row in a common form, that of plain tables; its pictures are not yet read.

    An unknown column is an error, as it may be a typo.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: TextOrNumber | None = None
    image: AnyPicture
    question: str
    answer: TextOrNumber = ""
    kind: str = ""
    crop: AnyPicture | None = None
    box: AnyBox | None = None
    """Used if there is no crop picture; the released teacher uses the picture."""


class _ReleasedRow(BaseModel):
    """A line of the released JSONL: the picture with a red box, the crop, the clean picture."""

    images: list[AnyPicture]
    teacher_images: list[AnyPicture] | None = None
    original_images: list[AnyPicture] | None = None
    bbox: Box | None = None
    problem: str
    answer: str | None = None
    clean_question: str | None = Field(None, validation_alias=AliasPath("extra_info", "question"))
    other_answer: str | None = Field(None, validation_alias=AliasPath("extra_info", "answer"))


class _Message(BaseModel):
    role: str
    content: str


class _ParquetRow(BaseModel):
    """A row of the parquet form that the released code trains on."""

    prompt: list[_Message] | str
    images: list[AnyPicture]
    bbox_images: list[AnyPicture] | None = None
    ability: str | None = None
    answer: str | None = Field(None, validation_alias=AliasPath("reward_model", "ground_truth"))
    other_answer: str | None = Field(None, validation_alias=AliasPath("extra_info", "answer"))


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
                draft = _read_row(fields_of(raw), view)
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


def _read_row(row: Mapping[str, Any], view: View) -> Draft:
    """Convert a source row, whose fields show which of the three layouts it has."""
    try:
        if "prompt" in row:
            return _from_parquet(_ParquetRow.model_validate(row), view)
        if "problem" in row:
            return _from_released(_ReleasedRow.model_validate(row), view)
        return _from_plain({name: value for name, value in row.items() if value not in (None, "")})
    except ValidationError as error:
        raise DataError(explain(error)) from error


def _from_released(row: _ReleasedRow, view: View) -> Draft:
    question = row.problem
    if view == "clean":
        if not row.clean_question:
            raise DataError(
                "The view `clean` needs `extra_info.question`, which is missing. Add it, or choose "
                "the view `boxed`."
            )
        question = row.clean_question
    return Draft(
        image=_only(row, "original_images" if view == "clean" else "images"),
        question=_without_marker(question),
        answer=row.answer or row.other_answer or "",
        crop=_only(row, "teacher_images") if row.teacher_images else None,
        box=row.bbox,
    )


def _from_parquet(row: _ParquetRow, view: View) -> Draft:
    if view == "clean":
        raise DataError(
            "The parquet form has no clean pictures. Prepare the view `clean` from the released "
            "JSONL, or choose the view `boxed`."
        )
    prompt = row.prompt
    if not isinstance(prompt, str):
        if [message.role for message in prompt] != ["user"]:
            raise DataError("Field 'prompt' must hold exactly one user message and no others.")
        prompt = prompt[0].content
    return Draft(
        image=_only(row, "images"),
        question=_without_marker(prompt),
        answer=row.answer or row.other_answer or "",
        kind=row.ability or "",
        crop=_only(row, "bbox_images") if row.bbox_images else None,
    )


def _from_plain(row: dict[str, Any]) -> Draft:
    edges = {edge: row.pop(edge) for edge in _EDGES if edge in row}
    if bool(edges) + ("box" in row) + ("crop" in row) > 1:
        raise DataError("It gives the crop more than once. Keep `box`, or x0 to y1, or `crop`.")
    if edges:
        if len(edges) < 4:
            raise DataError("The box is incomplete: x0, y0, x1 and y1 must all be numbers.")
        row["box"] = list(edges.values())
    try:
        return Draft.model_validate(row)
    except ValidationError as error:
        # A row of four columns has no field `box`.
        names = {f"'box {place}'": repr(edge) for place, edge in enumerate(edges, 1)}
        message = explain(error, (*Draft.model_fields, *_EDGES))
        for ours, theirs in names.items():
            message = message.replace(ours, theirs)
        raise DataError(message) from error


def _only(row: BaseModel, column: str) -> Picture:
    pictures = getattr(row, column) or []
    if len(pictures) != 1:
        raise DataError(
            f"Field {column!r} holds {len(pictures)} pictures, but exactly one is supported. Drop "
            "the row or split it."
        )
    return pictures[0]


def _without_marker(question: str) -> str:
    """Return the question without its image marker, which the chat template adds again."""
    text = question.strip().removeprefix(_MARKER).lstrip()
    if _MARKER in text:
        raise DataError(
            f"The question has {_MARKER} somewhere other than at its start. Drop the row: only one "
            "picture before the question is supported."
        )
    return text
