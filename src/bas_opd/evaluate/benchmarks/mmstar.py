"""MMStar: questions that cannot be answered without the picture (Chen et al., 2024)."""

from __future__ import annotations

from collections.abc import Sequence

from bas_opd.answers.listed import answer_letter, listed_options
from bas_opd.evaluate.benchmarks.benchmark import Benchmark
from bas_opd.evaluate.benchmarks.reading import Layout, Record, read_records
from bas_opd.evaluate.benchmarks.summary import accuracy_by
from bas_opd.evaluate.questions import Question

_COLUMNS = (("question",), ("answer",), ("category",))
_LAYOUTS = (
    Layout(tables=("mmstar.parquet", "data/*.parquet"), columns=_COLUMNS),
    Layout(tables=("MMStar.tsv", "mmstar.tsv"), columns=_COLUMNS),
)


def ask(records: Sequence[Record]) -> list[Question]:
    """Options are part of the question, as "Options: A: .., B: .." or below "Choices:"."""
    return [_question(record) for record in records]


def _question(record: Record) -> Question:
    prompt = record.text("question")
    options = listed_options(prompt)
    reference = answer_letter(record.text("answer"), options)
    if reference is None:
        raise record.refused(f"Its answer {record.text('answer')!r} is none of its options.")
    return Question(
        id=record.optional("index") or record.address,
        picture=record.picture,
        prompt=prompt,
        form="choice",
        reference=reference,
        options=options,
        groups={"category": record.text("category")},
    )


MMSTAR = Benchmark(
    name="mmstar",
    title="MMStar",
    expected=1500,
    obtain="Download mmstar.parquet of the dataset Lin-Chen/MMStar, and name its folder.",
    files=("mmstar.parquet",),
    read=lambda folder: read_records(folder, _LAYOUTS),
    ask=ask,
    also=lambda scored: accuracy_by(scored, "category"),
    even_parts={"category": (6, 250)},
)
