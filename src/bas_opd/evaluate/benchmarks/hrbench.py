"""HR-Bench 4K: two hundred questions, each asked four times with its options rotated (2024)."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from bas_opd.answers.listed import answer_letter, with_choices
from bas_opd.evaluate.benchmarks.benchmark import Benchmark
from bas_opd.evaluate.benchmarks.reading import Layout, Record, read_records
from bas_opd.evaluate.benchmarks.summary import (
    Measure,
    Scored,
    accuracy,
    accuracy_by,
    all_right,
    grouped,
)
from bas_opd.evaluate.questions import Question

CYCLES = 4
_LETTERS = "ABCD"
_COLUMNS = tuple((name,) for name in ("question", "answer", *_LETTERS, "category"))
_LAYOUTS = (
    Layout(
        tables=("hr_bench_4k*.parquet", "data/hr_bench_4k*.parquet"),
        columns=(*_COLUMNS, ("cycle_category",)),
    ),
    Layout(tables=("hr_bench_4k*.tsv",), columns=(*_COLUMNS, ("cycle_category",))),
)


def ask(records: Sequence[Record]) -> list[Question]:
    """The four rotations of a question share its text and its options.

    Several pictures may share both: then the first of each cycle belong together, the second, and
    so on, since every cycle has its questions in one order.
    """
    met: Counter[tuple[str, ...]] = Counter()
    questions = []
    for record in records:
        options = {name: text for name in _LETTERS if (text := record.optional(name))}
        reference = answer_letter(record.text("answer"), options)
        if reference is None:
            raise record.refused(f"Its answer {record.text('answer')!r} is none of its options.")
        category, cycle = record.text("category"), record.text("cycle_category")
        same = (record.text("question"), category, *sorted(options.values()))
        met[cycle, *same] += 1
        number = record.optional("index") or record.address
        questions.append(
            Question(
                id=f"{cycle}/{number}",
                picture=record.picture,
                prompt=with_choices(record.text("question"), options),
                form="choice",
                reference=reference,
                options=options,
                groups={
                    "category": category,
                    "cycle": cycle,
                    "question": _digest(*same, str(met[cycle, *same])),
                },
            )
        )
    return questions


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def also(scored: Sequence[Scored]) -> tuple[Measure, ...]:
    """Return single-instance and cross-instance accuracy, each cycle's, and all four right."""
    categories = grouped(scored, "category")
    return (
        accuracy(categories.get("single", []), name="FSP"),
        accuracy(categories.get("cross", []), name="FCP"),
        *accuracy_by(scored, "cycle"),
        all_right(scored, "question", size=CYCLES, name="all four right"),
    )


HRBENCH4K = Benchmark(
    name="hrbench4k",
    title="HR-Bench 4K",
    expected=800,
    obtain=(
        "Download hr_bench_4k.parquet or hr_bench_4k.tsv of the dataset DreamMr/HR-Bench, and name "
        "its folder."
    ),
    files=("hr_bench_4k*.parquet", "data/hr_bench_4k*.parquet"),
    read=lambda folder: read_records(folder, _LAYOUTS),
    ask=ask,
    also=also,
    even_parts={"cycle": (CYCLES, 200)},
)
