"""The page of a demo: the table, example pictures, and the rollouts that one step queried."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from bas_opd import __version__
from bas_opd.report.charts.steps import shown_step, step_drawing
from bas_opd.report.demo_results import LABELS, TRAINED, DemoResults, finding, gap, table
from bas_opd.report.pages.pictures import Framed, framed, varied
from bas_opd.report.pages.templates import template
from bas_opd.types import Example

GROUPS = {
    "fixed": ("Fixed by training", 4),
    "broken": ("Broken by training", 4),
    "still wrong": ("Still wrong", 2),
    "right": ("Right all along", 2),
}
"""Change of a question through training: its heading, and how many examples are shown."""


def write_page(results: DemoResults) -> Path:
    """Write `page.html`, a single self-contained file, and return its path."""
    page = results.folder / "page.html"
    page.write_text(
        template("demo.html.jinja").render(
            rows=table(results),
            models=LABELS,
            gap=gap(results),
            finding=finding(results),
            groups=_groups(results),
            answers=results.answers,
            drawing=step_drawing(shown_step(results.steps["learned25"]), policy="learned"),
            steps=len(results.steps["learned25"]),
            questions=len(results.examples),
            folder=results.folder,
            version=__version__,
        ),
        encoding="utf-8",
    )
    return page


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Examples of one group, and how many of all questions are in it."""

    title: str
    count: int
    shown: tuple[tuple[Example, Framed], ...]


def _groups(results: DemoResults) -> list[Group]:
    changes = {example.id: change(results, example.id) for example in results.examples}
    counts = Counter(changes.values())
    boxed = [each for each in results.examples if each.crop is not None and each.crop.box]
    chosen = {
        name: varied((each for each in boxed if changes[each.id] == name), wanted)
        for name, (_, wanted) in GROUPS.items()
    }
    return [
        Group(
            title=title,
            count=counts[name],
            shown=tuple((example, framed(example)) for example in chosen[name]),
        )
        for name, (title, _) in GROUPS.items()
    ]


def change(results: DemoResults, question: str) -> str:
    """Return the group of a question: fixed or broken if either run changed it."""
    before = results.answers["base"][question].is_correct
    after = [results.answers[run][question].is_correct for run in TRAINED]
    if before:
        return "right" if all(after) else "broken"
    return "fixed" if any(after) else "still wrong"
