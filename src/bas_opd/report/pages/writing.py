"""From run directories to the files of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bas_opd.errors import BasOpdError
from bas_opd.files import write_text
from bas_opd.report.comparison import compare_runs, headline
from bas_opd.report.findings import audit_figures, result
from bas_opd.report.pages.card import comparison_card, run_card
from bas_opd.report.pages.examples import training_set
from bas_opd.report.pages.page import comparison_page, run_page
from bas_opd.report.run import read_run
from bas_opd.run.verify import verify

PAGE, CARD = "report.html", "card.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A report on disk, and its result in one sentence."""

    sentence: str
    page: Path
    card: Path


def write_report(run: Path, out: Path, *, data: Path | None = None) -> Written:
    """Write the page and the card of one run; `data` is its training set, if that has moved."""
    read, checked = read_run(run), verify(run, unfinished=True, files=False)
    examples, audits = training_set(read, data), audit_figures(read)
    return _write(
        out,
        sentence=result(read),
        page=run_page(read, checked, audits, examples),
        card=run_card(read, checked, audits),
    )


def write_comparison(runs: Sequence[Path], out: Path) -> Written:
    """Write the page and the card of several runs."""
    comparison = compare_runs([read_run(run) for run in runs])
    checked = {
        entry.label: verify(entry.run.path, unfinished=True, files=False)
        for entry in comparison.entries
    }
    audits = {entry.label: audit_figures(entry.run) for entry in comparison.entries}
    return _write(
        out,
        sentence=headline(comparison),
        page=comparison_page(comparison, checked, audits),
        card=comparison_card(comparison, checked, audits),
    )


def _write(out: Path, *, sentence: str, page: str, card: str) -> Written:
    written = Written(sentence=sentence, page=out / PAGE, card=out / CARD)
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_text(written.page, page)
        write_text(written.card, card)
    except OSError as error:
        raise BasOpdError(
            f"The report cannot be written to {out}: {error.strerror}. Name another folder with "
            "--out."
        ) from error
    return written
