"""FineSearch: small drawn objects in large pictures, from a prepared set."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bas_opd.answers import ends_with
from bas_opd.data.images import open_crop
from bas_opd.data.records import PreparedSet
from bas_opd.evaluate.benchmarks.benchmark import Benchmark
from bas_opd.evaluate.benchmarks.metric import Metric, primary_metric
from bas_opd.evaluate.benchmarks.pictures import read_file
from bas_opd.evaluate.benchmarks.reading import Record
from bas_opd.evaluate.benchmarks.summary import Measure, Scored, accuracy_by, all_right
from bas_opd.evaluate.questions import Picture, Question
from bas_opd.types import Example

PAIR = "pair"
HALVES = ("-a", "-b")
"""Endings of the ids of two questions on one scene, which are a pair."""


def read(folder: Path) -> list[Record]:
    """Return the examples of a prepared set, whose picture names are hashes of their contents."""
    return [
        _record(
            folder,
            number,
            example,
            Picture(partial(read_file, example.image), name=str(example.image)),
            example.image.name,
        )
        for number, example in enumerate(PreparedSet.load(folder).examples, 1)
    ]


def read_crops(folder: Path) -> list[Record]:
    """Return the examples that have a crop, with the crop as their picture."""
    return [
        _record(
            folder,
            number,
            example,
            Picture(partial(_crop_bytes, example), name=f"of example {example.id}"),
            _crop_name(example),
        )
        for number, example in enumerate(PreparedSet.load(folder).examples, 1)
        if example.has_crop
    ]


def _record(folder: Path, number: int, example: Example, picture: Picture, sketch: str) -> Record:
    return Record(
        where=f"{folder}, row {number}",
        table=folder.name,
        number=number,
        cells={
            "id": example.id,
            "kind": example.kind,
            "question": example.question,
            "answer": example.answer,
        },
        picture=picture,
        sketch=sketch,
    )


def _crop_bytes(example: Example) -> bytes:
    stream = io.BytesIO()
    open_crop(example).save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def _crop_name(example: Example) -> str:
    crop = example.crop
    picture = crop and crop.image
    return f"crop {picture.name if picture else (example.image.name, crop and crop.box)}"


def ask(records: Sequence[Record]) -> list[Question]:
    """The question is the prompt."""
    return [_question(record) for record in records]


def _question(record: Record) -> Question:
    name, kind = record.text("id"), record.optional("kind")
    pair = {"pair": name[: -len(HALVES[0])]} if kind == PAIR and name.endswith(HALVES) else {}
    return Question(
        id=name,
        picture=record.picture,
        prompt=record.text("question"),
        form="short",
        reference=record.text("answer"),
        groups={"kind": kind, **pair},
    )


def metric(scored: Sequence[Scored]) -> Metric:
    """Return the primary metric of the set."""
    return primary_metric({each.groups.get("kind", "") for each in scored})


def also(scored: Sequence[Scored]) -> tuple[Measure, ...]:
    """Return the accuracy of each kind where there are several, and over pairs."""
    kinds = accuracy_by(scored, "kind")
    return (
        *(kinds if len(kinds) > 1 else ()),
        all_right(scored, "pair", size=2, name="pair accuracy"),
    )


FINESEARCH = Benchmark(
    name="finesearch",
    title="FineSearch",
    expected=None,
    obtain="Make one with `bas-opd data make finesearch OUT --split test`, and name OUT.",
    read=read,
    read_crops=read_crops,
    ask=ask,
    metric=metric,
    also=also,
    is_right=ends_with,
)
