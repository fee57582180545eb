"""The results of a demo, read from its folder: the table, sentences about it, and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bas_opd import __version__
from bas_opd.data.records import PreparedSet
from bas_opd.errors import DataError
from bas_opd.evaluate.results import read_evaluation
from bas_opd.report.charts.training import shown_step, step_drawing
from bas_opd.report.comparison import verdict
from bas_opd.report.pages.examples import framed, varied
from bas_opd.report.pages.templates import template
from bas_opd.report.run import Run, read_run
from bas_opd.stats.intervals import paired_difference, wilson_interval
from bas_opd.text import ends_text, percent, points
from bas_opd.types import Example

LABELS = {"base": "base", "learned25": "learned-25", "full": "full"}
"""The models of the table in order: the one before training, and the two runs."""
TRAINED = ("learned25", "full")
CROPS = "base-crop"
"""The base again, which sees the crops that otherwise only its teacher sees."""
GROUPS = {
    "fixed": ("Fixed by training", 4),
    "broken": ("Broken by training", 4),
    "still wrong": ("Still wrong", 2),
    "right": ("Right all along", 2),
}
"""Change of a question through training: its heading, and how many examples are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A model's answer to one question."""

    output: str
    is_correct: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResults:
    """Questions, the answers of each model to them, and both runs."""

    folder: Path
    examples: tuple[Example, ...]
    answers: dict[str, dict[str, Answer]]
    """Model -> id of the question -> answer, in the order of the questions."""
    runs: dict[str, Run]

    def outcomes(self, model: str) -> list[bool]:
        """Return for each question whether the model's answer is right."""
        return [answer.is_correct for answer in self.answers[model].values()]


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
    examples = PreparedSet.load(folder / "data" / "test").examples
    asked = [example.id for example in examples]
    if any(list(answers[model]) != asked for model in LABELS):
        raise DataError(
            f"The answers in {folder} do not belong to the questions in {folder / 'data' / 'test'}."
            " Run `bas-opd demo` for a new one."
        )
    runs = {run: read_run(folder / run) for run in TRAINED}
    return DemoResults(folder=folder, examples=examples, answers=answers, runs=runs)


def table(results: DemoResults) -> list[tuple[str, ...]]:
    """Return accuracy and cost of the base and of both runs, side by side, under a header."""
    outcomes = [results.outcomes(model) for model in LABELS]
    intervals = [wilson_interval(sum(each), len(each)) for each in outcomes]
    sums = [results.runs[run].totals for run in TRAINED]
    learned, full = sums
    # The base had no teacher, so it has no cost.
    return [
        ("", *LABELS.values()),
        (
            f"right answers, of {len(results.examples):,}",
            *(f"{sum(each):,} ({percent(sum(each), len(each))})" for each in outcomes),
        ),
        ("  95 % confidence interval, in %", *map(ends_text, intervals)),
        *(
            (
                label,
                "-",
                f"{learned[name]:,} ({percent(learned[name], full[name])})",
                f"{full[name]:,}",
            )
            for label, name in (
                ("teacher calls", "calls"),
                ("tokens the teacher scored", "scored_tokens"),
                ("tokens it processed", "processed_tokens"),
                ("total tokens, student's x 3", "total_tokens"),
            )
        ),
        ("seconds of the teacher", "-", *(f"{each['seconds']['teacher']:.1f}" for each in sums)),
        ("seconds of training", "-", *(f"{sum(each['seconds'].values()):.1f}" for each in sums)),
        ("steps", "-", *(f"{each['steps']:,}" for each in sums)),
        ("  rows chosen by prediction", "-", *(f"{each['ranked_steps']:,}" for each in sums)),
    ]


def gap(results: DemoResults) -> str:
    """Return a sentence on how much better the base answers from the crop."""
    crops = results.answers[CROPS]
    whole = sum(results.answers["base"][name].is_correct for name in crops)
    close = sum(answer.is_correct for answer in crops.values())
    return (
        f"Of the {len(crops):,} questions that have a crop, the base gets {whole:,} right from the "
        f"whole picture ({percent(whole, len(crops))}) and {close:,} from the crop "
        f"({percent(close, len(crops))})."
    )


def finding(results: DemoResults) -> tuple[str, ...]:
    """Return the differences in sentences: a loss is called a loss, and chance is called chance."""
    base, learned, full = (results.outcomes(model) for model in LABELS)
    asked, asked_by_full = (results.runs[run].totals["calls"] for run in TRAINED)
    return (
        compared("Learned-25", learned, "the base", base),
        compared("Full querying", full, "the base", base),
        compared("Learned-25", learned, "full querying", full),
        f"Learned-25 asked its teacher {asked:,} times, full querying {asked_by_full:,} times.",
    )


def compared(a: str, of_a: Sequence[bool], b: str, of_b: Sequence[bool]) -> str:
    """Return one sentence on the difference between two models on the same questions."""
    if list(of_a) == list(of_b):
        return f"{a} and {b} have the same {sum(of_a):,} of {len(of_a):,} questions right."
    more = sum(of_a) - sum(of_b)
    difference = paired_difference([*map(float, of_a)], [*map(float, of_b)])
    mean, interval = points(difference)
    amount = f"{abs(more):,} {'more' if more > 0 else 'fewer'}" if more else "as many"
    return (
        f"{a} has {amount} of {len(of_a):,} questions right {'than' if more else 'as'} {b} "
        f"({mean} points, 95 % CI {interval}): {verdict(difference)}."
    )


def write_page(results: DemoResults) -> Path:
    """Write `page.html`, a single self-contained file, and return its path."""
    learned = results.runs["learned25"]
    changes = {example.id: change(results, example.id) for example in results.examples}
    boxed = [each for each in results.examples if each.crop is not None and each.crop.box]
    groups = [
        {
            "title": title,
            "count": list(changes.values()).count(name),
            "shown": [
                (example, framed(example))
                for example in varied((each for each in boxed if changes[each.id] == name), wanted)
            ],
        }
        for name, (title, wanted) in GROUPS.items()
    ]
    page = results.folder / "page.html"
    page.write_text(
        template("demo.html.jinja").render(
            rows=table(results),
            models=LABELS,
            gap=gap(results),
            finding=finding(results),
            groups=groups,
            answers=results.answers,
            drawing=step_drawing(shown_step(learned.steps), learned.rule),
            steps=len(learned.steps),
            questions=len(results.examples),
            folder=results.folder,
            version=__version__,
        ),
        encoding="utf-8",
    )
    return page


def change(results: DemoResults, question: str) -> str:
    """Return the group of a question: fixed or broken if either run changed it."""
    before = results.answers["base"][question].is_correct
    after = [results.answers[run][question].is_correct for run in TRAINED]
    if before:
        return "right" if all(after) else "broken"
    return "fixed" if any(after) else "still wrong"
