"""The page of a demo: the table, examples to look at, and which rollouts a step asked about."""

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
"""What became of a question: its heading, and how many examples of it the page wants."""


def write_page(results: DemoResults) -> Path:
    """Write `page.html`, one file that needs nothing else, and return its path."""
    page = results.folder / "page.html"
    page.write_text(
        template("demo_page.html.jinja", Path(__file__).parent).render(
            rows=table(results),
            models=LABELS,
            gap=gap(results),
            finding=finding(results),
            groups=_groups(results),
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
class Said:
    """What a model said to the question of an example."""

    model: str
    output: str
    is_correct: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """An example as the page shows it."""

    example: Example
    framed: Framed
    said: tuple[Said, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Examples of one fate, and how many of all questions shared it."""

    title: str
    count: int
    shown: tuple[Shown, ...]


def _groups(results: DemoResults) -> list[Group]:
    fates = {example.id: fate(results, example.id) for example in results.examples}
    counts = Counter(fates.values())
    boxed = [each for each in results.examples if each.crop is not None and each.crop.box]
    chosen = {
        name: varied((each for each in boxed if fates[each.id] == name), wanted)
        for name, (_, wanted) in GROUPS.items()
    }
    return [
        Group(
            title=title,
            count=counts[name],
            shown=tuple(_shown(results, example) for example in chosen[name]),
        )
        for name, (title, _) in GROUPS.items()
    ]


def fate(results: DemoResults, question: str) -> str:
    """Say what became of a question: fixed or broken if either run changed it."""
    before = results.answers["base"][question].is_correct
    after = [results.answers[run][question].is_correct for run in TRAINED]
    if before:
        return "right" if all(after) else "broken"
    return "fixed" if any(after) else "still wrong"


def _shown(results: DemoResults, example: Example) -> Shown:
    return Shown(
        example=example,
        framed=framed(example),
        said=tuple(
            Said(model=label, output=said.output, is_correct=said.is_correct)
            for model, label in LABELS.items()
            for said in [results.answers[model][example.id]]
        ),
    )
