"""The results of a demo, read from its folder: the table, and sentences about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bas_opd.data.records import PreparedSet
from bas_opd.errors import DataError
from bas_opd.evaluate.results import read_evaluation
from bas_opd.run.history import read_history
from bas_opd.run.ledger import Ledger
from bas_opd.run.record import QueryRecord
from bas_opd.stats.intervals import paired_difference, wilson_interval
from bas_opd.text import aligned
from bas_opd.types import Example

LABELS = {"base": "base", "learned25": "learned-25", "full": "full"}
"""The models of the table in order: the one before training, and the two runs."""
TRAINED = ("learned25", "full")
CROPS = "base-crop"
"""The base again, which sees the crops that otherwise only its teacher sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A model's answer to one question."""

    output: str
    is_correct: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResults:
    """Questions, the answers of each model to them, and the steps of each run."""

    folder: Path
    examples: tuple[Example, ...]
    answers: dict[str, dict[str, Answer]]
    """Model -> id of the question -> answer, in the order of the questions."""
    steps: dict[str, tuple[QueryRecord, ...]]
    """Run -> its steps."""

    def outcomes(self, model: str) -> list[bool]:
        """Return for each question whether the model's answer is right."""
        return [answer.is_correct for answer in self.answers[model].values()]

    def totals(self, run: str) -> dict[str, Any]:
        """Return the totals over the steps of a run."""
        return Ledger.of(self.steps[run]).totals()


@dataclass(frozen=True, slots=True)
class TableRow:
    """One line of the table: a label, and a cell for each of `LABELS`."""

    label: str
    cells: tuple[str, ...]


def evaluation_folder(folder: Path, model: str) -> Path:
    """Return the folder of a model's evaluation; for a run it is that of `bas-opd eval`."""
    return folder / "base" / "eval-crops" if model == CROPS else folder / model / "eval"


def read_answers(folder: Path, model: str) -> dict[str, Answer]:
    """Return question id -> the answer of a model, in the order of the questions."""
    path = evaluation_folder(folder, model)
    evaluation = read_evaluation(path)
    if evaluation is None:
        raise DataError(
            f"The demo in {folder} is incomplete: {path} holds no evaluation. Run `bas-opd demo` "
            "for a new one."
        )
    (result,) = evaluation.results
    texts = result.answers()
    if not result.scored or len(texts) < len(result.scored):
        raise DataError(f"The evaluation in {path} is damaged. Run `bas-opd demo` for a new one.")
    return {
        each.id: Answer(output=texts[each.id], is_correct=each.is_correct) for each in result.scored
    }


def read_demo(folder: Path) -> DemoResults:
    """Read a finished demo; raise if a part of it is missing or damaged."""
    answers = {model: read_answers(folder, model) for model in (*LABELS, CROPS)}
    steps = {run: read_history(folder / run).queries for run in TRAINED}
    examples = PreparedSet.load(folder / "data" / "test").examples
    asked = [example.id for example in examples]
    if any(list(answers[model]) != asked for model in LABELS):
        raise DataError(
            f"The answers in {folder} do not belong to the questions in {folder / 'data' / 'test'}."
            " Run `bas-opd demo` for a new one."
        )
    return DemoResults(folder=folder, examples=examples, answers=answers, steps=steps)


def table(results: DemoResults) -> tuple[TableRow, ...]:
    """Return accuracy and cost of the base and of both runs, side by side."""
    outcomes = [results.outcomes(model) for model in LABELS]
    intervals = [wilson_interval(sum(each), len(each)) for each in outcomes]
    sums = [results.totals(run) for run in TRAINED]
    learned, full = sums
    return (
        TableRow(
            f"right answers, of {len(results.examples):,}",
            tuple(f"{sum(each):,} ({_percent(sum(each), len(each))})" for each in outcomes),
        ),
        TableRow(
            "  95 % confidence interval, in %",
            tuple(f"{100 * low:.1f} to {100 * high:.1f}" for low, high in intervals),
        ),
        *(
            _trained(
                label, f"{learned[name]:,} ({_percent(learned[name], full[name])})", full[name]
            )
            for label, name in (
                ("teacher calls", "calls"),
                ("tokens the teacher scored", "scored_tokens"),
                ("tokens it processed", "processed_tokens"),
            )
        ),
        _trained("seconds of the teacher", *(f"{each['seconds']['teacher']:.1f}" for each in sums)),
        _trained("seconds of training", *(f"{sum(each['seconds'].values()):.1f}" for each in sums)),
        _trained("steps", *(each["steps"] for each in sums)),
        _trained("  rows chosen by prediction", *(each["ranked_steps"] for each in sums)),
    )


def _trained(label: str, *cells: str | int) -> TableRow:
    """Return a line without a number for the base, which had no teacher."""
    texts = (cell if isinstance(cell, str) else f"{cell:,}" for cell in cells)
    return TableRow(label, ("-", *texts))


def gap(results: DemoResults) -> str:
    """Return a sentence on how much better the base answers from the crop."""
    crops = results.answers[CROPS]
    whole = sum(results.answers["base"][name].is_correct for name in crops)
    close = sum(answer.is_correct for answer in crops.values())
    return (
        f"Of the {len(crops):,} questions that have a crop, the base gets {whole:,} right from the "
        f"whole picture ({_percent(whole, len(crops))}) and {close:,} from the crop "
        f"({_percent(close, len(crops))})."
    )


def finding(results: DemoResults) -> tuple[str, ...]:
    """Return the differences in sentences: a loss is called a loss, and chance is called chance."""
    base, learned, full = (results.outcomes(model) for model in LABELS)
    asked, asked_by_full = (results.totals(run)["calls"] for run in TRAINED)
    return (
        compared("Learned-25", learned, "the base", base),
        compared("Full querying", full, "the base", base),
        compared("Learned-25", learned, "full querying", full),
        f"Learned-25 asked its teacher {asked:,} times, full querying {asked_by_full:,} times.",
    )


def compared(a: str, of_a: Sequence[bool], b: str, of_b: Sequence[bool]) -> str:
    """Return one sentence on the difference between two models on the same questions."""
    more = sum(of_a) - sum(of_b)
    if list(of_a) == list(of_b):
        return f"{a} and {b} have the same {sum(of_a):,} of {len(of_a):,} questions right."
    difference = paired_difference(_numbers(of_a), _numbers(of_b))
    low, high = (100 * (difference.mean + side * difference.half_width) for side in (-1, 1))
    amount = f"{abs(more):,} {'more' if more > 0 else 'fewer'}" if more else "as many"
    verdict = (
        "not significantly different"
        if difference.holds_zero
        else ("a gain" if more > 0 else "a loss")
    )
    return (
        f"{a} has {amount} of {len(of_a):,} questions right {'than' if more else 'as'} {b} "
        f"({100 * difference.mean:+.1f} points, 95 % CI {low:+.1f} to {high:+.1f}): "
        f"{verdict}."
    )


def text_table(rows: Iterable[TableRow]) -> str:
    """Return the table in plain characters."""
    return aligned([("", *LABELS.values()), *((row.label, *row.cells) for row in rows)])


def _numbers(outcomes: Sequence[bool]) -> list[float]:
    return [float(outcome) for outcome in outcomes]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"
