"""MMVP: pairs of pictures that look alike to CLIP, one question on both (Tong et al., 2024)."""

from __future__ import annotations

from collections.abc import Sequence

from bas_opd.answers.listed import answer_letter, listed_options
from bas_opd.evaluate.benchmarks.benchmark import Benchmark
from bas_opd.evaluate.benchmarks.reading import Layout, Record, read_records
from bas_opd.evaluate.benchmarks.summary import all_right
from bas_opd.evaluate.questions import Question

_INDEX = ("Index", "lndex")
"""Copies of the file spell it with a capital i or with a small L."""
_LAYOUTS = (
    Layout(
        tables=("Questions.csv",),
        columns=(("Question",), ("Options",), ("Correct Answer",)),
        picture=_INDEX,
        places=("MMVP Images/{}.jpg",),
    ),
)


def ask(records: Sequence[Record]) -> list[Question]:
    """Options are written "(a) Open (b) Closed"; letters here are capitals.

    Labels are the published ones, those of the disputed questions 99, 100, 279 and 280 too.
    """
    return [_question(record) for record in records]


def _question(record: Record) -> Question:
    index = record.text(*_INDEX)
    if not index.isdecimal() or int(index) < 1:
        raise record.refused(f"Its Index {index!r} is not a whole number from 1 on.")
    options = listed_options(record.text("Options"))
    answer = record.text("Correct Answer")
    reference = answer_letter(answer, options)
    if reference is None:
        raise record.refused(f"Its Correct Answer {answer!r} is none of its options.")
    return Question(
        id=index,
        picture=record.picture,
        prompt=f"{record.text('Question')} {record.text('Options')}",
        form="choice",
        reference=reference,
        options=options,
        groups={"pair": str((int(index) + 1) // 2)},
    )


MMVP = Benchmark(
    name="mmvp",
    title="MMVP",
    expected=300,
    obtain=(
        "Download Questions.csv and the folder `MMVP Images` of the dataset MMVP/MMVP, and name "
        "the folder that holds both."
    ),
    files=("Questions.csv", "MMVP Images/*"),
    read=lambda folder: read_records(folder, _LAYOUTS),
    ask=ask,
    also=lambda scored: (all_right(scored, "pair", size=2, name="pair accuracy"),),
    even_parts={"pair": (150, 2)},
)
