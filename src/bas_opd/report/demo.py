"""The results of a demo, read from its folder: the table, sentences about it, and the page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bas_opd import __version__
from bas_opd.data.records import PreparedSet
from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks import Measure, Summary, benchmark
from bas_opd.evaluate.results import BenchmarkResult, compare, read_evaluation
from bas_opd.files import write_text
from bas_opd.report.arms import Arm, estimate_of
from bas_opd.report.charts.accuracy import accuracy_cost
from bas_opd.report.charts.training import shown_step, step_drawing
from bas_opd.report.findings import interval_text, value_text, verdict
from bas_opd.report.pages.examples import framed, varied
from bas_opd.report.pages.templates import template
from bas_opd.report.run import Run, read_run
from bas_opd.text import percent, points
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
    evaluated: dict[str, BenchmarkResult]
    """Model -> its evaluation on the questions."""
    answers: dict[str, dict[str, Answer]]
    """Model -> id of the question -> answer, in the order of the questions."""
    runs: dict[str, Run]


def evaluation_folder(folder: Path, model: str) -> Path:
    """Return the folder of a model's evaluation; for a run it is that of `bas-opd eval`."""
    return folder / "base" / "eval-crops" if model == CROPS else folder / model / "eval"


def read_result(folder: Path, model: str) -> BenchmarkResult:
    """Return the evaluation of a model."""
    path = evaluation_folder(folder, model)
    evaluation = read_evaluation(path)
    if evaluation is None:
        raise DataError(
            f"The demo in {folder} is incomplete: {path} holds no evaluation. Run `bas-opd demo` "
            "for a new one."
        )
    (result,) = evaluation.results
    return result


def read_demo(folder: Path) -> DemoResults:
    """Read a finished demo; raise if a part of it is missing or damaged."""
    evaluated: dict[str, BenchmarkResult] = {}
    answers: dict[str, dict[str, Answer]] = {}
    for model in (*LABELS, CROPS):
        evaluated[model] = read_result(folder, model)
        answers[model] = _answers(evaluated[model])
    examples = PreparedSet.load(folder / "data" / "test").examples
    asked = [example.id for example in examples]
    if any(list(answers[model]) != asked for model in LABELS):
        raise DataError(
            f"The answers in {folder} do not belong to the questions in {folder / 'data' / 'test'}."
            " Run `bas-opd demo` for a new one."
        )
    runs = {run: read_run(folder / run) for run in TRAINED}
    return DemoResults(
        folder=folder, examples=examples, evaluated=evaluated, answers=answers, runs=runs
    )


def _answers(result: BenchmarkResult) -> dict[str, Answer]:
    """Return question id -> answer, in the order of the questions."""
    texts = result.answers()
    if not result.scored or len(texts) < len(result.scored):
        raise DataError(
            f"The evaluation in {result.outputs.parent} is damaged. Run `bas-opd demo` for a new "
            "one."
        )
    return {
        each.id: Answer(output=texts[each.id], is_correct=each.is_correct) for each in result.scored
    }


def accuracies(summary: Summary) -> tuple[Measure, ...]:
    """Return the accuracies of a model, the primary one first."""
    return (summary.primary, *([] if summary.beside is None else [summary.beside]))


def table(results: DemoResults) -> list[tuple[str, ...]]:
    """Return accuracy and cost of the base and of both runs, side by side, under a header."""
    summaries = [results.evaluated[model].summary for model in LABELS]
    sums = [results.runs[run].totals for run in TRAINED]
    learned, full = sums
    # The base had no teacher, so it has no cost.
    return [
        ("", *LABELS.values()),
        *(
            row
            for measures in zip(*map(accuracies, summaries), strict=True)
            for row in (
                (f"accuracy, {measures[0].name}", *map(_with_count, measures)),
                ("  95 % confidence interval, in %", *map(interval_text, measures)),
            )
        ),
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
        ("  that ranked by prediction", "-", *(f"{each['ranked_steps']:,}" for each in sums)),
    ]


def _with_count(measure: Measure) -> str:
    """Return an accuracy, with how many answers are right where it is a plain share."""
    count = "" if measure.correct is None else f" ({measure.correct:,})"
    return f"{value_text(measure)}{count}"


def gap(results: DemoResults) -> str:
    """Return a sentence on how much better the base answers from the crop."""
    close = results.evaluated[CROPS]
    asked = {each.id for each in close.scored}
    whole = [each for each in results.evaluated["base"].scored if each.id in asked]
    before, after = (
        accuracies(benchmark("finesearch").summarise(each)) for each in (whole, close.scored)
    )
    numbers = "; ".join(
        f"{a.name} {value_text(a)} and {value_text(b)}" for a, b in zip(before, after, strict=True)
    )
    return (
        f"On the {len(asked):,} questions that have a crop, accuracy of the base from the whole "
        f"picture and from the crop: {numbers}."
    )


def finding(results: DemoResults) -> tuple[str, ...]:
    """Return the differences in sentences: a loss is called a loss, and chance is called chance."""
    base, learned, full = (results.evaluated[model] for model in LABELS)
    asked, asked_by_full = (results.runs[run].totals["calls"] for run in TRAINED)
    return (
        compared("Learned-25", learned, "the base", base),
        compared("Full querying", full, "the base", base),
        compared("Learned-25", learned, "full querying", full),
        f"Learned-25 asked its teacher {asked:,} times, full querying {asked_by_full:,} times.",
    )


def compared(a: str, of_a: BenchmarkResult, b: str, of_b: BenchmarkResult) -> str:
    """Return one sentence on the difference between two models on the same questions."""
    result = compare(of_a.scored, of_b.scored, of_a.metric)
    if result.only_a == result.only_b == 0:
        return f"{a} and {b} have the same questions right."
    mean, interval = points(result.difference)
    beside = "" if result.beside is None else f"; all questions {points(result.beside)[0]}"
    return (
        f"{a} against {b}: {mean} points ({result.metric}, 95 % CI {interval}{beside}), "
        f"{verdict(result.difference)}."
    )


def write_page(results: DemoResults) -> Path:
    """Write `page.html`, a single self-contained file, and return its path."""
    learned = results.runs["learned25"]
    changes = {example.id: change(results, example.id) for example in results.examples}
    boxed = [each for each in results.examples if each.crop is not None and each.crop.box]
    groups, shown = [], []
    for name, (title, wanted) in GROUPS.items():
        picked = varied((each for each in boxed if changes[each.id] == name), wanted, shown)
        shown += picked
        groups.append(
            {
                "title": title,
                "count": list(changes.values()).count(name),
                "shown": [(example, framed(example)) for example in picked],
            }
        )
    page = results.folder / "page.html"
    write_text(
        page,
        template("demo.html.jinja").render(
            rows=table(results),
            models=LABELS,
            gap=gap(results),
            plot=accuracy_cost(_arms(results)),
            finding=finding(results),
            groups=groups,
            answers=results.answers,
            drawing=step_drawing(shown_step(learned.queries), learned.rule),
            steps=len(learned.steps),
            questions=len(results.examples),
            folder=results.folder,
            version=__version__,
        ),
    )
    return page


def _arms(results: DemoResults) -> list[Arm]:
    """Return accuracy and cost of the three models, for the chart."""
    full = results.runs["full"].totals["scored_tokens"]
    arms = []
    for model, label in LABELS.items():
        measure = results.evaluated[model].summary.primary
        run = results.runs.get(model)
        if (reached := estimate_of(measure)) is None:
            continue
        arms.append(
            Arm(
                name=label,
                policy="" if run is None else run.config.select.policy,
                budget=None if run is None else float(run.config.select.query_ratio),
                parts={},
                accuracy=reached,
                metric=measure.name,
                token_share=None if run is None else run.totals["scored_tokens"] / max(1, full),
            )
        )
    return arms


def change(results: DemoResults, question: str) -> str:
    """Return the group of a question: fixed or broken if either run changed it."""
    before = results.answers["base"][question].is_correct
    after = [results.answers[run][question].is_correct for run in TRAINED]
    if before:
        return "right" if all(after) else "broken"
    return "fixed" if any(after) else "still wrong"
