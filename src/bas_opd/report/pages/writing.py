"""From run directories to the files of a report: the page, which needs nothing else, and the card.

Both are made of the same facts, the card in short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bas_opd import __version__, disk
from bas_opd.audit.summary import RANKINGS
from bas_opd.config.loading import dump, flat
from bas_opd.config.schema import TeacherConfig
from bas_opd.errors import BasOpdError
from bas_opd.evaluate.benchmarks.summary import EVERY_QUESTION
from bas_opd.evaluate.results import RunEvaluation
from bas_opd.files import write_text
from bas_opd.report.arms import FOLDERS, PATHS, default_settings, shortened
from bas_opd.report.charts import training
from bas_opd.report.charts.audits import audit_figures
from bas_opd.report.comparison import (
    compare_runs,
    cost_sentence,
    entry_tiles,
    findings,
    headline,
    metric_name,
    run_table,
)
from bas_opd.report.costs import supervision_table, time_table, token_parts, token_table
from bas_opd.report.findings import (
    budget_sentence,
    gains,
    interval_text,
    not_run,
    result,
    stale_sentence,
    tiles,
    value_text,
)
from bas_opd.report.pages.examples import shown_examples, shown_prompts, training_set
from bas_opd.report.pages.templates import template
from bas_opd.report.run import Run, read_and_verify
from bas_opd.report.selection import reach
from bas_opd.run.curves import idle_words
from bas_opd.run.history import nothing_collected
from bas_opd.text import clock, percent, plus_minus, points

PAGE, CARD = "report.html", "card.md"
EVALUATED = (
    "benchmark",
    "metric",
    "accuracy",
    "95 % CI",
    EVERY_QUESTION,
    "questions",
    "deferred",
    "unscored",
    "judge",
)
GAINED = ("accuracy", "base", "trained", "difference, points", "95 % CI")
SHARED = {
    "gained_header": GAINED,
    "version": __version__,
    "evaluated_header": EVALUATED,
    "percent": percent,
    "clock": clock,
    "value_text": value_text,
    "interval_text": interval_text,
    "points": points,
}
"""What all templates may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A report on disk, and its result in one sentence, with what `verify` remarks."""

    sentence: str
    page: Path
    card: Path


@nothing_collected()
def write_report(path: Path, out: Path, *, data: Path | None = None) -> Written:
    """Write the page and the card of one run; `data` is its training set, if that has moved."""
    run, checked = read_and_verify(path)
    examples = training_set(run, data)
    kinds = {name: example.kind for name, example in examples.items()}
    facts = {
        "run": run,
        "checked": checked,
        "result": result(run),
        "remarks": checked.remarks,
        "tiles": tiles(run),
        "cost_plot": training.run_cost_chart(run),
        "budget": budget_sentence(run) if run.selects else "",
        "budget_chart": training.budget_chart(run) if run.selects else None,
        "selection": training.selection_charts(run, kinds),
        "reach": reach(run.queries),
        "drawing": training.step_drawing(training.shown_step(run.queries), run.rule)
        if run.queries
        else None,
        "audits": audit_figures(run),
        "stale": stale_sentence(run),
        "evaluated": _evaluated(run.evaluation),
        "gains": gains(run),
        "phases": _phases(run),
        "phase_chart": training.phase_chart(run),
        "curves": training.curve_charts(run),
        "idle": idle_words(run.steps),
        "evaluation_chart": training.evaluation_chart(run),
        "tokens": token_parts(run),
        "has_examples": bool(examples),
        "shown": shown_examples(run, examples),
        "prompts": shown_prompts(run, examples),
        "not_run": list(not_run(run, checked)),
        "environment": _environment(run),
        "settings": _settings(run),
    }
    return _write(out, "run", facts)


@nothing_collected()
def write_comparison(paths: Sequence[Path], out: Path) -> Written:
    """Write the page and the card of several runs."""
    read = [read_and_verify(path) for path in paths]
    comparison = compare_runs([run for run, _ in read])
    runs = {entry.label: entry.run for entry in comparison.entries}
    full = {entry.label: entry.full for entry in comparison.entries if entry.full is not None}
    whole = {label: run for label, run in runs.items() if run.is_full}
    asking = {label: run for label, run in runs.items() if run.has_queries}
    results = {run.path: result for run, result in read}
    checked = {label: results[run.path] for label, run in runs.items()}
    header, *rows = run_table(comparison)
    audits = [(label, each) for label, run in runs.items() for each in audit_figures(run)]
    facts = {
        "comparison": comparison,
        "checked": checked,
        "result": f"{headline(comparison)} {cost_sentence(comparison)}".strip(),
        "remarks": [
            f"{label}: {remark}" for label, each in checked.items() for remark in each.remarks
        ],
        "tiles": entry_tiles(comparison),
        "findings": findings(comparison),
        "metric": metric_name(comparison),
        "run_header": (*header, "records"),
        "run_rows": [
            (*row, "sound" if each.is_sound else "NOT sound")
            for row, each in zip(rows, checked.values(), strict=True)
        ],
        "evaluated": [
            (label, *cells)
            for label, run in runs.items()
            for cells in _evaluated(run.own_evaluation)
        ],
        "groups": [
            (
                group.name,
                len(group.members),
                group.metric or "-",
                plus_minus(group.accuracy, ".1f", 100) if group.accuracy else "-",
                *group.tokens,
                plus_minus(group.seconds, ",.1f"),
            )
            for group in comparison.groups
        ],
        "contrasts": [
            (f"{each.a} - {each.b}", each.metric, each.difference.n, *points(each.difference))
            for each in comparison.contrasts
        ],
        "plot": training.cost_chart(comparison.entries),
        "budget_charts": {
            label: training.budget_chart(run) for label, run in runs.items() if run.selects
        },
        "budgets": {label: budget_sentence(run) for label, run in runs.items() if run.selects},
        "curves": training.compared_curves(comparison.entries),
        "phase_charts": {
            label: training.phase_chart(run, max(each.seconds for each in runs.values()))
            for label, run in runs.items()
        },
        "phases": {label: _phases(run) for label, run in runs.items()},
        "utilities": training.utilities_chart(comparison.entries),
        "audits": audits,
        "rankings": [each for each in RANKINGS if any(each in one.captured for _, one in audits)],
        "tokens": token_table(runs, {**whole, **full}),
        "supervision": supervision_table(asking, full) if asking else None,
        "times": time_table(runs),
        "environments": {label: _environment(run) for label, run in runs.items()},
        "differing": _differing_settings(runs),
    }
    return _write(out, "comparison", facts)


def _write(out: Path, name: str, facts: dict[str, Any]) -> Written:
    sentence = " ".join((facts["result"], *facts["remarks"]))
    written = Written(sentence=sentence, page=out / PAGE, card=out / CARD)
    page, card = (
        template(f"{name}.{kind}.jinja").render(SHARED | facts) + "\n" for kind in ("html", "md")
    )
    try:
        disk.make_folder(out, parents=True, exist_ok=True)
        write_text(written.page, page)
        write_text(written.card, card)
    except OSError as error:
        raise BasOpdError(
            f"The report cannot be written to {out}: {error.strerror}. Name another folder with "
            "--out."
        ) from error
    return written


def _evaluated(evaluation: RunEvaluation | None) -> list[tuple[str, ...]]:
    """Return a row for each benchmark under `EVALUATED`."""
    return [
        (
            f"{each.title} (partial)" if each.is_partial else each.title,
            each.summary.primary.label,
            value_text(each.summary.primary),
            interval_text(each.summary.primary),
            value_text(each.summary.beside),
            f"{each.summary.n:,}",
            f"{each.summary.deferred:,}",
            f"{each.summary.unscored:,}",
            each.judge or "none",
        )
        for each in (evaluation.results if evaluation else ())
    ]


def _phases(run: Run) -> list[tuple[str, str, str, str]]:
    """Return name, seconds, share and mean per step of each phase, in the order of a step."""
    steps = len(run.steps) or 1
    return [
        (name, f"{seconds:,.1f} s", percent(seconds, run.seconds), f"{seconds / steps:,.3f} s")
        for name, seconds in training.shown_phases(run).items()
    ]


def _environment(run: Run) -> dict[str, str]:
    """Return what the numbers of a run depend on besides its settings."""
    started = run.started
    known = started.environment
    packages = known.get("packages")
    versions = packages.items() if isinstance(packages, dict) else ()
    return {
        "settings hash": started.config_hash,
        "base model": f"{shortened(run.config.model.path)}, weights {started.base[:16]}",
        **_another_teacher(run.config.teacher),
        "data": f"{shortened(started.data.folder)}, {started.data.examples:,} examples, "
        f"fingerprint {started.data.fingerprint[:16]}",
        "device": f"{known.get('gpu') or started.device}, {started.precision}",
        "machine": f"{known.get('platform')}, {known.get('threads')} threads",
        "python": str(known.get("python")),
        "packages": ", ".join(f"{name} {version}" for name, version in versions),
        "resumed": ", ".join(f"after step {step:,}" for step in run.resumed) or "never",
    }


def _another_teacher(teacher: TeacherConfig) -> dict[str, str]:
    """Return which other model taught; nothing where the student's own network did."""
    if teacher.path is not None:
        return {"teacher": f"{shortened(teacher.path)}, another model"}
    return {"teacher": f"{shortened(teacher.model)}, behind a server"} if teacher.server else {}


def _settings(run: Run) -> list[tuple[str, str, str]]:
    """Return key, value and default of every setting; paths have no default."""
    defaults = default_settings()
    return [
        (key, shortened(value), "")
        if key in FOLDERS and value
        else (key, _written(value), _written(defaults[key]))
        for key, value in flat(dump(run.config)).items()
    ]


def _differing_settings(runs: dict[str, Run]) -> dict[str, tuple[str, ...]]:
    """Return the settings in which runs differ, with the value of each run."""
    written = [{key: value for key, value, _ in _settings(run)} for run in runs.values()]
    return {
        key: values
        for key in written[0]
        if key not in PATHS and len(set(values := tuple(each[key] for each in written))) > 1
    }


def _written(value: Any) -> str:
    return "unset" if value is None else str(value)
