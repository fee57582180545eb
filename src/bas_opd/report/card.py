"""The card of a run, or of several: the facts of the page in short Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from bas_opd import __version__
from bas_opd.commands.verify import Verification
from bas_opd.evaluate.results import BenchmarkResult
from bas_opd.report.audits import AuditFigures
from bas_opd.report.comparison import RunComparison, findings, headline
from bas_opd.report.entries import Entry
from bas_opd.report.findings import budget_sentence, not_run, result, stale_sentence, tiles
from bas_opd.report.numerals import clock, ends_text, percent, value_text
from bas_opd.report.run import Run
from bas_opd.text import markdown_table, printable

EVALUATED = (
    "benchmark",
    "accuracy",
    "95 % interval",
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
    header = (
        "run",
        "steps",
        "accuracy",
        "95 % interval",
        "calls",
        "scored tokens",
        "processed tokens",
        "time",
        "records",
    )
    evaluated = [
        (entry.label, *_evaluated(each))
        for entry in comparison.entries
        if entry.run.own_evaluation is not None
        for each in entry.run.own_evaluation.results
    ]
    parts = [
        f"# {len(comparison.entries)} runs compared",
        escaped(headline(comparison)),
        _table(header, [_compared(each, checked[each.label]) for each in comparison.entries]),
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
    """Return text that Markdown shows as it is, on one line."""
    flat = " ".join(printable(text).split())
    return _SPECIAL.sub(r"\\\1", flat)


def _compared(entry: Entry, checked: Verification) -> tuple[str, ...]:
    sums = entry.run.totals
    processed = entry.processed_share
    return (
        f"{entry.number} {entry.label}",
        f"{len(entry.run.steps):,}",
        value_text(entry.accuracy),
        ends_text(entry.accuracy),
        f"{sums['calls']:,} ({percent(sums['calls'], sums['candidates'])})",
        f"{sums['scored_tokens']:,} ({percent(entry.token_share or 0, 1)})",
        f"{sums['processed_tokens']:,}"
        + ("" if processed is None else f" ({percent(processed, 1)})"),
        clock(entry.run.seconds),
        "sound" if checked.is_sound else "NOT sound",
    )


def _evaluated(result: BenchmarkResult) -> tuple[str, ...]:
    summary = result.summary
    return (
        f"{result.title} (partial)" if result.is_partial else result.title,
        value_text(summary.primary),
        ends_text(summary.primary),
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
