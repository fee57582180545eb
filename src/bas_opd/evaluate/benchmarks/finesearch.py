"""FineSearch: small drawn things in large pictures, from a prepared set."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bas_opd.data.records import PreparedSet
from bas_opd.evaluate.benchmarks.benchmark import Benchmark
from bas_opd.evaluate.benchmarks.pictures import read_file
from bas_opd.evaluate.benchmarks.reading import Record
from bas_opd.evaluate.benchmarks.summary import (
    Measure,
    Scored,
    accuracy,
    accuracy_by,
    all_right,
    mean,
)
from bas_opd.evaluate.questions import Question
from bas_opd.evaluate.score import HALVES, PAIR


def read(folder: Path) -> list[Record]:
    """Return the examples of a prepared set, whose picture names are hashes of their contents."""
    return [
        Record(
            where=f"{folder}, row {number}",
            table=folder.name,
            number=number,
            cells={
                "id": example.id,
                "kind": example.kind,
                "question": example.question,
                "answer": example.answer,
            },
            picture=partial(read_file, example.image),
            sketch=example.image.name,
        )
        for number, example in enumerate(PreparedSet.load(folder).examples, 1)
    ]


def ask(records: Sequence[Record]) -> list[Question]:
    """The question is the prompt, and the last word of a response is what counts."""
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


def primary(scored: Sequence[Scored]) -> Measure:
    """Return the unweighted mean over kinds of question."""
    return mean("mean over kinds", accuracy_by(scored, "kind"))


def also(scored: Sequence[Scored]) -> tuple[Measure, ...]:
    """Return accuracy over questions, of each kind, and over pairs."""
    return (
        accuracy(scored, name="micro"),
        *accuracy_by(scored, "kind"),
        all_right(scored, "pair", size=2, name="pair accuracy"),
    )


FINESEARCH = Benchmark(
    name="finesearch",
    title="FineSearch",
    expected=None,
    obtain="Make one with `bas-opd data make finesearch OUT --split test`, and name OUT.",
    read=read,
    ask=ask,
    primary=primary,
    also=also,
    grader="finesearch",
)
