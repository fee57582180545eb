"""POPE: is there such a thing in the picture, yes or no (Li et al., 2023)."""

from __future__ import annotations

from collections.abc import Sequence

from bas_opd.answers.listed import ending_with
from bas_opd.evaluate.benchmarks.benchmark import Benchmark
from bas_opd.evaluate.benchmarks.reading import Layout, Record, read_records
from bas_opd.evaluate.benchmarks.summary import Measure, Scored, accuracy, grouped, share
from bas_opd.evaluate.questions import Question

SPLITS = ("adversarial", "popular", "random")
INSTRUCTION = "Answer the question using a single word or phrase."

_COLUMNS = (("question", "text"), ("answer", "label"))
_LAYOUTS = (
    Layout(tables=("data/test*.parquet",), columns=(*_COLUMNS, ("category",))),
    Layout(
        tables=tuple(f"{place}{split}*.parquet" for place in ("Full/", "") for split in SPLITS),
        columns=_COLUMNS,
    ),
    Layout(
        tables=tuple(
            f"{place}coco_pope_{split}.json" for place in ("", "output/coco/") for split in SPLITS
        ),
        columns=_COLUMNS,
        places=("val2014/{}", "images/{}", "{}"),
    ),
)


def ask(records: Sequence[Record]) -> list[Question]:
    """The split is a column, or the name of the file; question ids start over in each."""
    return [_question(record) for record in records]


def _question(record: Record) -> Question:
    answer = record.text("answer", "label").casefold()
    if answer not in ("yes", "no"):
        raise record.refused(f"Its answer {answer!r} is neither yes nor no.")
    named = record.optional("category").casefold()
    split = next((name for name in SPLITS if name in (named or record.table)), None)
    if split is None:
        raise record.refused(f"Its split {named or record.table!r} is none of {', '.join(SPLITS)}.")
    number = record.optional("question_id") or record.address
    return Question(
        id=f"{split}/{number}",
        picture=record.picture,
        prompt=ending_with(record.text("question", "text"), INSTRUCTION),
        form="yes_no",
        reference=answer,
        groups={"split": split, "label": answer},
    )


def also(scored: Sequence[Scored]) -> tuple[Measure, ...]:
    """Return the five numbers of every split."""
    return tuple(
        measure
        for split, those in grouped(scored, "split").items()
        for measure in _five(those, split)
    )


def _five(scored: Sequence[Scored], split: str) -> tuple[Measure, ...]:
    """Return accuracy, precision, recall, F1 and the share of yes.

    An answer that is neither is no yes: it lowers recall where yes was right, and never precision.
    """
    yes = sum(_says_yes(each) for each in scored)
    true = [each for each in scored if each.groups["label"] == "yes"]
    hits = sum(each.is_correct for each in true)
    both = yes + len(true)
    return (
        accuracy(scored, group="split", part=split),
        share("precision", hits, yes, group="split", part=split),
        share("recall", hits, len(true), group="split", part=split),
        Measure(
            name="F1",
            group="split",
            part=split,
            value=2 * hits / both if both else None,
            n=len(scored),
        ),
        share("yes ratio", yes, len(scored), group="split", part=split),
    )


def _says_yes(each: Scored) -> bool:
    """A verdict of the judge reveals the answer only if it was right."""
    return each.groups["label"] == "yes" if each.is_correct else each.value == "yes"


POPE = Benchmark(
    name="pope",
    title="POPE",
    expected=9000,
    obtain=(
        "Download data/*.parquet of the dataset lmms-lab/POPE, or coco_pope_random.json, "
        "coco_pope_popular.json and coco_pope_adversarial.json with the pictures of COCO val2014 "
        "in the folder `val2014`, and name the folder that holds them. Old copies have only 2,910 "
        "random questions."
    ),
    files=("data/*.parquet",),
    read=lambda folder: read_records(folder, _LAYOUTS),
    ask=ask,
    also=also,
    parts={"split": dict.fromkeys(SPLITS, 3000)},
)
