"""CV-Bench: counting, relations, depth and distance in known datasets (Tong et al., 2024)."""

from __future__ import annotations

from collections.abc import Sequence

from bas_opd.answers.listed import answer_letter, lettered, with_choices
from bas_opd.evaluate.benchmarks.benchmark import Benchmark
from bas_opd.evaluate.benchmarks.metric import Metric
from bas_opd.evaluate.benchmarks.reading import Layout, Record, read_records
from bas_opd.evaluate.benchmarks.summary import (
    Measure,
    Scored,
    accuracy,
    accuracy_by,
    blend,
    grouped,
)
from bas_opd.evaluate.questions import Question

MOST_OPTIONS = 6
TWO_AND_THREE = Metric(name="mean of 2D and 3D", group="type", parts=("2D", "3D"))
"""The paper's number."""
_COLUMNS = tuple((name,) for name in ("type", "task", "question", "choices", "answer", "source"))
_LAYOUTS = (
    Layout(tables=("test_*d*.parquet", "data/test*.parquet"), columns=_COLUMNS),
    Layout(
        tables=("test_*d.jsonl", "test.jsonl"),
        columns=_COLUMNS,
        picture=("filename",),
        places=("{}", "img/{}"),
    ),
)


def ask(records: Sequence[Record]) -> list[Question]:
    """Questions have two to six options, and answers are written "(C)"."""
    return [_question(record) for record in records]


def _question(record: Record) -> Question:
    choices = record.cells["choices"]
    if not isinstance(choices, list) or not 2 <= len(choices) <= MOST_OPTIONS:
        raise record.refused(f"Its choices are not a list of two to {MOST_OPTIONS} options.")
    options = lettered([str(choice).strip() for choice in choices])
    reference = answer_letter(record.text("answer"), options)
    if reference is None:
        raise record.refused(f"Its answer {record.text('answer')!r} is none of its choices.")
    kind = record.text("type")
    number = record.optional("idx") or record.address
    return Question(
        id=f"{kind}/{number}",
        picture=record.picture,
        prompt=_prompt(record, with_choices("", options), record.text("question")),
        form="choice",
        reference=reference,
        options=options,
        groups={"type": kind, "task": record.text("task"), "source": record.text("source")},
    )


def _prompt(record: Record, choices: str, question: str) -> str:
    """Return the stored prompt if it has the usual form: it may say which box is meant."""
    stored = record.optional("prompt")
    return stored if stored.endswith(choices) else question + choices


def also(scored: Sequence[Scored]) -> tuple[Measure, ...]:
    """Return the authors' formula, which weighs sources, then the parts."""
    sources = grouped(scored, "source")
    weights = {"ADE20K": 0.25, "COCO": 0.25, "Omni3D": 0.5}
    official = [(weight, accuracy(sources.get(name, []))) for name, weight in weights.items()]
    return (
        blend("official", official),
        *(
            measure
            for group in ("type", "task", "source")
            for measure in accuracy_by(scored, group)
        ),
    )


CVBENCH = Benchmark(
    name="cvbench",
    title="CV-Bench",
    expected=2638,
    obtain=(
        "Download test_2d.parquet and test_3d.parquet of the dataset nyu-visionx/CV-Bench, and "
        "name their folder."
    ),
    files=("*.parquet",),
    read=lambda folder: read_records(folder, _LAYOUTS),
    ask=ask,
    metric=lambda _: TWO_AND_THREE,
    also=also,
    parts={"type": {"2D": 1438, "3D": 1200}},
)
