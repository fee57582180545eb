"""ZoomBench: fine detail, partly multiple choice, partly free answers that need a judge."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bas_opd.answers.listed import answer_letter, listed_options
from bas_opd.evaluate.benchmarks.benchmark import Benchmark
from bas_opd.evaluate.benchmarks.reading import Layout, Record, read_records
from bas_opd.evaluate.benchmarks.summary import Measure, Scored, accuracy_by
from bas_opd.evaluate.questions import Question

_GROUPS = ("dimension", "category", "question_type")
_MARKER = "<image>"
_CHOICE = re.compile(r"mcq|choice", re.IGNORECASE)
_LAYOUTS = (
    Layout(
        tables=("data/test*.parquet", "test*.parquet"),
        columns=(("query", "prompt"), ("response", "answer")),
    ),
)


def ask(records: Sequence[Record]) -> list[Question]:
    """Columns are query and response, or prompt and answer; `crop_image` is not looked at."""
    return [_question(record) for record in records]


def _question(record: Record) -> Question:
    prompt = record.text("query", "prompt").removeprefix(_MARKER).lstrip()
    answer = record.text("response", "answer")
    options = listed_options(prompt)
    letter = answer_letter(answer, options)
    if letter is None and _CHOICE.search(record.optional("question_type")):
        raise record.refused(
            f"It is a multiple choice, but its answer {answer!r} is none of the options that could "
            "be read in it."
        )
    return Question(
        id=record.optional("id") or record.address,
        picture=record.picture,
        prompt=prompt,
        form="short" if letter is None else "choice",
        reference=letter or answer,
        options={} if letter is None else options,
        groups={
            "form": "open" if letter is None else "multiple choice",
            **{name: found for name in _GROUPS if (found := record.optional(name))},
        },
    )


def also(scored: Sequence[Scored]) -> tuple[Measure, ...]:
    """Return accuracies by form, and by those groups that the revision has."""
    return tuple(measure for group in ("form", *_GROUPS) for measure in accuracy_by(scored, group))


ZOOMBENCH = Benchmark(
    name="zoombench",
    title="ZoomBench",
    expected=845,
    obtain="Download data/test.parquet of the dataset inclusionAI/ZoomBench, and name its folder.",
    files=("data/*.parquet",),
    read=lambda folder: read_records(folder, _LAYOUTS),
    ask=ask,
    also=also,
)
