"""Pages and cards as a reader meets them: for tests of what they say."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

from bas_opd.report.pages.writing import write_comparison, write_report


def page_of(run: Path) -> str:
    return write_report(run, run).page.read_text(encoding="utf-8")


def card_of(run: Path) -> str:
    return write_report(run, run).card.read_text(encoding="utf-8")


def comparison_of(out: Path, *runs: Path) -> tuple[str, str]:
    """The page of several runs, and their card."""
    written = write_comparison(runs, out)
    return written.page.read_text(encoding="utf-8"), written.card.read_text(encoding="utf-8")


def words_of(page: str) -> str:
    """The text of a page as a reader sees it."""
    body = page.partition("<body>")[2] or page
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", body)).split())


def section(page: str, place: str) -> str:
    return page.partition(f'<section id="{place}">')[2].partition("</section>")[0]
