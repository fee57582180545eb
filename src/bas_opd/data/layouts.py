"""Layouts of source rows: the released Vision-OPD-6K forms, and plain tables with boxes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bas_opd.data.images import Box
from bas_opd.data.records import explain
from bas_opd.errors import DataError

View = Literal["boxed", "clean"]
_MARKER = "<image>"


class Picture(BaseModel):
    """A picture in a source row: a path, the bytes, or both."""

    model_config = ConfigDict(frozen=True)

    path: str | None = None
    data: bytes | None = Field(default=None, validation_alias="bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A source row in a common form; its pictures are not yet read."""

    image: Picture
    question: str
    answer: str = ""
    kind: str = ""
    id: str | None = None
    crop: Picture | None = None
    box: Box | None = None
    """Used if there is no crop picture; the released teacher uses the picture."""


class _ExtraInfo(BaseModel):
    question: str | None = None
    answer: str | None = None


class _ReleasedRow(BaseModel):
    """A line of the released JSONL: the picture with a red box, the crop, the clean picture."""

    images: list[Picture | str]
    teacher_images: list[Picture | str] | None = None
    original_images: list[Picture | str] | None = None
    bbox: Box | None = None
    problem: str
    answer: str | None = None
    extra_info: _ExtraInfo | None = None


class _Message(BaseModel):
    role: str
    content: str


class _RewardModel(BaseModel):
    ground_truth: str | None = None


class _ParquetRow(BaseModel):
    """A row of the parquet form that the released code trains on."""

    prompt: list[_Message] | str
    images: list[Picture | str]
    bbox_images: list[Picture | str] | None = None
    ability: str | None = None
    reward_model: _RewardModel | None = None
    extra_info: _ExtraInfo | None = None


class _PlainRow(BaseModel):
    """A row of a plain JSONL or CSV file; an unknown column is an error, as it may be a typo."""

    model_config = ConfigDict(extra="forbid")

    id: str | int | None = None
    image: Picture | str
    question: str
    answer: str | int | float | None = None
    kind: str | None = None
    box: Box | str | None = None
    x0: float | None = None
    y0: float | None = None
    x1: float | None = None
    y1: float | None = None
    crop: Picture | str | None = None


def read_row(row: Mapping[str, Any], view: View) -> Draft:
    """Convert a source row, whose fields show which of the three layouts it has."""
    try:
        if "prompt" in row:
            return _from_parquet(_ParquetRow.model_validate(row), view)
        if "problem" in row:
            return _from_released(_ReleasedRow.model_validate(row), view)
        present = {name: value for name, value in row.items() if value not in (None, "")}
        return _from_plain(_PlainRow.model_validate(present))
    except ValidationError as error:
        raise DataError(explain(error)) from error


def _from_released(row: _ReleasedRow, view: View) -> Draft:
    info = row.extra_info or _ExtraInfo()
    if view == "clean":
        image = _only(row.original_images, "original_images")
        question = _clean_question(info)
    else:
        image = _only(row.images, "images")
        question = row.problem
    return Draft(
        image=image,
        question=_without_marker(question),
        answer=row.answer or info.answer or "",
        crop=_only(row.teacher_images, "teacher_images") if row.teacher_images else None,
        box=row.bbox,
    )


def _from_parquet(row: _ParquetRow, view: View) -> Draft:
    if view == "clean":
        raise DataError(
            "The parquet form has no clean pictures. Prepare the view `clean` from the released "
            "JSONL, or choose the view `boxed`."
        )
    info = row.extra_info or _ExtraInfo()
    truth = row.reward_model.ground_truth if row.reward_model else None
    return Draft(
        image=_only(row.images, "images"),
        question=_without_marker(_user_text(row.prompt)),
        answer=truth or info.answer or "",
        kind=row.ability or "",
        crop=_only(row.bbox_images, "bbox_images") if row.bbox_images else None,
    )


def _from_plain(row: _PlainRow) -> Draft:
    edges = (row.x0, row.y0, row.x1, row.y1)
    views = [row.box is not None, any(edge is not None for edge in edges), row.crop is not None]
    if sum(views) > 1:
        raise DataError("It gives the crop more than once. Keep `box`, or x0 to y1, or `crop`.")
    return Draft(
        id=None if row.id is None else str(row.id),
        image=_picture(row.image),
        question=row.question,
        answer="" if row.answer is None else str(row.answer),
        kind=row.kind or "",
        crop=None if row.crop is None else _picture(row.crop),
        box=_box(list(edges) if views[1] else row.box),
    )


def _box(value: Box | str | list[float | None] | None) -> Box | None:
    """Parse a box from four numbers, or from text with or without brackets."""
    if isinstance(value, str):
        try:
            value = json.loads(f"[{value.strip().removeprefix('[').removesuffix(']')}]")
        except ValueError as error:
            raise DataError(f"The box {value[:80]!r} is not written as x0,y0,x1,y1.") from error
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or len(value) != 4:
        raise DataError(f"The box {str(value)[:80]!r} does not have four numbers x0,y0,x1,y1.")
    if not all(isinstance(edge, (int, float)) for edge in value):
        raise DataError("The box is incomplete: x0, y0, x1 and y1 must all be numbers.")
    x0, y0, x1, y1 = (float(edge) for edge in value if edge is not None)
    return x0, y0, x1, y1


def _picture(value: Picture | str) -> Picture:
    return Picture(path=value) if isinstance(value, str) else value


def _only(pictures: list[Picture | str] | None, column: str) -> Picture:
    if not pictures or len(pictures) > 1:
        raise DataError(
            f"Field {column!r} holds {len(pictures or [])} pictures, but exactly one is supported. "
            "Drop the row or split it."
        )
    return _picture(pictures[0])


def _clean_question(info: _ExtraInfo) -> str:
    if not info.question:
        raise DataError(
            "The view `clean` needs `extra_info.question`, which is missing. Add it, or choose the "
            "view `boxed`."
        )
    return info.question


def _user_text(prompt: list[_Message] | str) -> str:
    if isinstance(prompt, str):
        return prompt
    if [message.role for message in prompt] != ["user"]:
        raise DataError("Field 'prompt' must hold exactly one user message and no others.")
    return prompt[0].content


def _without_marker(question: str) -> str:
    """Return the question without its image marker, which the chat template adds again."""
    text = question.strip().removeprefix(_MARKER).lstrip()
    if _MARKER in text:
        raise DataError(
            f"The question has {_MARKER} somewhere other than at its start. Drop the row: only one "
            "picture before the question is supported."
        )
    return text
