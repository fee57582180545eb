"""V*Bench: a small thing in a large picture, its colour or its place (Wu and Xie, 2024)."""

from __future__ import annotations

from collections.abc import Sequence

from bas_opd.answers.listed import answer_letter, ending_with, listed_options
from bas_opd.evaluate.benchmarks.benchmark import Benchmark
from bas_opd.evaluate.benchmarks.reading import Layout, Record, read_records
from bas_opd.evaluate.benchmarks.summary import accuracy_by
from bas_opd.evaluate.questions import Question

INSTRUCTION = "Answer with the option's letter from the given choices directly."

_COLUMNS = (("text",), ("category",), ("label",))
_LAYOUTS = (
    Layout(tables=("test_questions.jsonl",), columns=_COLUMNS, places=("{}",)),
    Layout(tables=("data/test*.parquet", "test*.parquet"), columns=_COLUMNS),
)


def ask(records: Sequence[Record]) -> list[Question]:
    """Options are part of the text; some rows have only two."""
    return [_question(record) for record in records]


def _question(record: Record) -> Question:
    prompt = ending_with(record.text("text"), INSTRUCTION)
    options = listed_options(prompt.removesuffix(INSTRUCTION))
    reference = answer_letter(record.text("label"), options)
    if reference is None:
        raise record.refused(f"Its label {record.text('label')!r} is none of its options.")
    category = record.text("category")
    number = record.optional("question_id") or record.address
    return Question(
        id=f"{category}/{number}",
        picture=record.picture,
        prompt=prompt,
        form="choice",
        reference=reference,
        options=options,
        groups={"category": category},
    )


VSTAR = Benchmark(
    name="vstar",
    title="V*Bench",
    expected=191,
    obtain=(
        "Download data/*.parquet of the dataset lmms-lab/vstar-bench, or test_questions.jsonl and "
        "the folders of pictures of craigwu/vstar_bench, and name that folder."
    ),
    files=("data/*.parquet", "test_questions.jsonl", "*.jpg", "*.png", "*.webp"),
    read=lambda folder: read_records(folder, _LAYOUTS),
    ask=ask,
    also=lambda scored: accuracy_by(scored, "category"),
    parts={"category": {"direct_attributes": 115, "relative_position": 76}},
)
