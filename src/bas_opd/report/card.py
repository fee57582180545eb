"""The card of a run, or of several: the facts of the page in short Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from bas_opd import __version__
from bas_opd.evaluate.benchmarks import Measure
from bas_opd.report.comparison import RunComparison, findings, headline
from bas_opd.report.costs import percent
from bas_opd.report.findings import budget_sentence, clock, not_run, result, tiles
from bas_opd.report.run import Run
from bas_opd.runtime.console import printable
from bas_opd.runtime.verify import Verification

_SPECIAL = re.compile(r"([\\*_{}\[\]<>#|~!&])")


def run_card(run: Run, checked: Verification) -> str:
    """Return the card of one run."""
    parts = [
        f"# {escaped(run.policy)}: {escaped(run.name)}",
        escaped(result(run)),
        _table(("", "", ""), [(tile.name, tile.value, tile.detail) for tile in tiles(run)]),
        f"**Budget.** {escaped(budget_sentence(run))} {_checks(checked)}",
    ]
    if run.evaluation is not None:
        parts.append(
            _table(
                ("benchmark", "accuracy", "95 % interval", "questions", "deferred", "unscored"),
                [
                    (
                        f"{each.title} (partial)" if each.is_partial else each.title,
                        *_measure(each.summary.primary),
                        f"{each.summary.n:,}",
                        f"{each.summary.deferred:,}",
                        f"{each.summary.unscored:,}",
                    )
                    for each in run.evaluation.results
                ],
            )
        )
    parts += [
        "**What was not run.**\n\n" + _list(not_run(run, checked)),
        f"Settings {run.started.config_hash}, data {run.started.data.fingerprint[:16]}, base "
        f"{run.started.base[:16]}; made by bas-opd {__version__}.",
    ]
    return "\n\n".join(parts) + "\n"


def comparison_card(comparison: RunComparison, checked: dict[str, Verification]) -> str:
    """Return the card of several runs."""
    rows = []
    for entry in comparison.entries:
        sums, accuracy = entry.run.totals, entry.accuracy
        rows.append(
            (
                f"{entry.number} {entry.label}",
                f"{len(entry.run.steps):,}",
                *(("-", "-") if accuracy is None else _measure(accuracy)),
                f"{sums['calls']:,} ({percent(sums['calls'], sums['candidates'])})",
                f"{sums['scored_tokens']:,} ({percent(entry.token_share or 0, 1)})",
                clock(entry.run.seconds),
                "sound" if checked[entry.label].is_sound else "NOT sound",
            )
        )
    header = ("run", "steps", "accuracy", "95 % interval", "calls", "tokens", "time", "records")
    parts = [
        f"# {len(comparison.entries)} runs compared",
        escaped(headline(comparison)),
        _table(header, rows),
        _list(findings(comparison)),
        _list(comparison.notes),
        f"Made by bas-opd {__version__}.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def escaped(text: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    flat = " ".join(printable(text).split())
    return _SPECIAL.sub(r"\\\1", flat)


def _checks(checked: Verification) -> str:
    if checked.is_sound:
        return f"All {len(checked.checks)} checks of the records hold."
    wrong = ", ".join(check.name for check in checked.checks if not check.is_sound)
    return f"**Checks that do not hold: {escaped(wrong)}.**"


def _measure(measure: Measure) -> tuple[str, str]:
    value = "-" if measure.value is None else f"{100 * measure.value:.1f} %"
    if measure.interval is None:
        return value, "-"
    low, high = measure.interval
    return value, f"{100 * low:.1f} to {100 * high:.1f}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---", *["--:"] * (len(header) - 1)]]
    written = [" | ".join(line) for line in lines]
    written += [" | ".join(escaped(cell) for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in written)


def _list(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {escaped(each)}" for each in sentences)
