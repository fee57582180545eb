"""The card of a run, or of several: the facts of the page in short Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from bas_opd import __version__
from bas_opd.evaluate.results import BenchmarkResult
from bas_opd.report.comparison import RUN_HEADER, RunComparison, findings, headline, run_rows
from bas_opd.report.findings import (
    AuditFigures,
    budget_sentence,
    interval_text,
    not_run,
    result,
    stale_sentence,
    tiles,
    value_text,
)
from bas_opd.report.run import Run
from bas_opd.run.verify import Verification
from bas_opd.text import markdown_table, printable

EVALUATED = (
    "benchmark",
    "accuracy",
    "95 % CI",
    "questions",
    "deferred",
    "unscored",
    "judge",
)
_SPECIAL = re.compile(r"([\\*_{}\[\]<>#|~!&])")


def run_card(run: Run, checked: Verification, audits: AuditFigures) -> str:
    """Return the card of one run."""
    parts = [
        f"# {escaped(run.policy)}: {escaped(run.name)}",
        escaped(result(run)),
        _table(("", "", ""), [(tile.name, tile.value, tile.detail) for tile in tiles(run)]),
        f"**Budget.** {escaped(budget_sentence(run))} {_checks(checked)}",
    ]
    if stale := stale_sentence(run):
        parts.append(f"**{escaped(stale)}**")
    if run.evaluation is not None:
        parts.append(_table(EVALUATED, [_evaluated(each) for each in run.evaluation.results]))
    parts += [f"**{what}.** {escaped(words)}" for what, words in audits.sentences()]
    parts += [
        "**What was not run.**\n\n" + _list(not_run(run, checked)),
        f"Settings {run.started.config_hash}, data {run.started.data.fingerprint[:16]}, base "
        f"{run.started.base[:16]}; made by bas-opd {__version__}.",
    ]
    return "\n\n".join(parts) + "\n"


def comparison_card(
    comparison: RunComparison,
    checked: Mapping[str, Verification],
    audits: Mapping[str, AuditFigures],
) -> str:
    """Return the card of several runs; `checked` and `audits` are by label."""
    evaluated = [
        (entry.label, *_evaluated(each))
        for entry in comparison.entries
        if entry.run.own_evaluation is not None
        for each in entry.run.own_evaluation.results
    ]
    rows = [
        (*row, "sound" if checked[entry.label].is_sound else "NOT sound")
        for row, entry in zip(run_rows(comparison), comparison.entries, strict=True)
    ]
    parts = [
        f"# {len(comparison.entries)} runs compared",
        escaped(headline(comparison)),
        _table((*RUN_HEADER, "records"), rows),
        _table(("run", *EVALUATED), evaluated) if evaluated else "",
        _list(findings(comparison)),
        _list(
            f"{label}: {what}. {words}"
            for label, each in audits.items()
            for what, words in each.sentences()
        ),
        _list(comparison.notes),
        f"Made by bas-opd {__version__}.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def escaped(text: str) -> str:
    """Return text that Markdown shows verbatim, on one line."""
    flat = " ".join(printable(text).split())
    return _SPECIAL.sub(r"\\\1", flat)


def _evaluated(result: BenchmarkResult) -> tuple[str, ...]:
    summary = result.summary
    return (
        f"{result.title} (partial)" if result.is_partial else result.title,
        value_text(summary.primary),
        interval_text(summary.primary),
        f"{summary.n:,}",
        f"{summary.deferred:,}",
        f"{summary.unscored:,}",
        result.judge or "none",
    )


def _checks(checked: Verification) -> str:
    if checked.is_sound:
        return f"All {len(checked.checks)} checks of the records hold."
    wrong = ", ".join(check.name for check in checked.checks if not check.is_sound)
    return f"**Checks that do not hold: {escaped(wrong)}.**"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return markdown_table(header, [[escaped(cell) for cell in row] for row in rows])


def _list(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {escaped(each)}" for each in sentences)
