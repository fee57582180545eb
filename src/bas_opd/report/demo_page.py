"""The page of a demo: the table, examples to look at, and which rollouts a step asked about."""

from __future__ import annotations

import base64
import io
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

from bas_opd import __version__
from bas_opd.data.images import open_crop, open_image
from bas_opd.report.demo_results import LABELS, TRAINED, DemoResults, finding, gap, table
from bas_opd.runtime.step_record import StepRecord
from bas_opd.types import Example

GROUPS = {
    "fixed": ("Fixed by training", 4),
    "broken": ("Broken by training", 4),
    "still wrong": ("Still wrong", 2),
    "right": ("Right all along", 2),
}
"""What became of a question: its heading, and how many examples of it the page wants."""
CELL = 14
"""Side of a rollout's place in the drawing of a step."""


def write_page(results: DemoResults) -> Path:
    """Write `page.html`, one file that needs nothing else, and return its path."""
    templates = Environment(
        loader=PackageLoader("bas_opd.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = results.folder / "page.html"
    page.write_text(
        templates.get_template("demo_page.html.jinja").render(
            rows=table(results),
            models=LABELS,
            gap=gap(results),
            finding=finding(results),
            groups=_groups(results),
            drawing=_drawing(_shown_step(results.steps["learned25"])),
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
    size: tuple[int, int]
    picture: str
    crop: str
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


def varied(examples: Iterable[Example], wanted: int) -> list[Example]:
    """Take so many examples in order, kinds that were not taken yet before those that were."""
    left, chosen = list(examples), []
    while left and len(chosen) < wanted:
        taken = Counter(each.kind for each in chosen)
        pick = min(left, key=lambda each: taken[each.kind])
        left.remove(pick)
        chosen.append(pick)
    return chosen


def _shown(results: DemoResults, example: Example) -> Shown:
    picture = open_image(example.image)
    return Shown(
        example=example,
        size=picture.size,
        picture=_data_url(picture, "JPEG"),
        crop=_data_url(open_crop(example), "PNG"),
        said=tuple(
            Said(model=label, output=said.output, is_correct=said.is_correct)
            for model, label in LABELS.items()
            for said in [results.answers[model][example.id]]
        ),
    )


def _data_url(picture: Image.Image, format: str) -> str:
    stream = io.BytesIO()
    picture.save(stream, format, **({"quality": 88} if format == "JPEG" else {}))
    encoded = base64.b64encode(stream.getvalue()).decode("ascii")
    return f"data:image/{format.lower()};base64,{encoded}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One rollout in the drawing of a step."""

    state: str
    """no-crop, passed-over, ranked or explored."""
    x: float
    y: float
    radius: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A step: a column for each prompt, a mark for each of its rollouts."""

    width: int
    height: int
    marks: tuple[Mark, ...]
    caption: str


def _shown_step(steps: Sequence[StepRecord]) -> StepRecord:
    """Return the last step whose rows were chosen by prediction, or else the last."""
    ranked = [step for step in steps if step.score_of]
    return (ranked or steps)[-1]


def _drawing(step: StepRecord) -> Drawing:
    utility = dict(zip(step.selected, step.utility, strict=True))
    known = [value for value in utility.values() if value is not None]
    largest = max((*known, 1e-12))
    marks = []
    for row in range(len(step.examples) * step.per_prompt):
        column, place = divmod(row, step.per_prompt)
        state = _state(step, row)
        observed = utility.get(row)
        # The area of a mark follows the utility, but one near zero can still be seen.
        grown = math.sqrt(max(0.0, observed or 0.0) / largest)
        marks.append(
            Mark(
                state=state,
                x=(column + 0.5) * CELL,
                y=(place + 0.5) * CELL,
                radius=round(2.2 + 4 * grown, 2),
                title=_title(step, row, observed),
            )
        )
    return Drawing(
        width=len(step.examples) * CELL,
        height=step.per_prompt * CELL,
        marks=tuple(marks),
        caption=_caption(step, utility),
    )


def _state(step: StepRecord, row: int) -> str:
    if row not in set(step.candidates):
        return "no-crop"
    if row in _explored(step):
        return "explored"
    return "ranked" if row in set(step.selected) else "passed-over"


def _explored(step: StepRecord) -> set[int]:
    """Return the rows drawn at random: all of them, before there is a prediction to go by."""
    return set(step.explored if step.score_of else step.selected)


def _title(step: StepRecord, row: int, observed: float | None) -> str:
    parts = [f"{step.examples[row // step.per_prompt]}, rollout {row % step.per_prompt + 1}"]
    if (predicted := step.score_of.get(row)) is not None:
        parts.append(f"predicted utility {predicted:.2g}")
    if observed is not None:
        parts.append(f"observed utility {observed:.2g}")
    return "; ".join(parts)


def _caption(step: StepRecord, utility: dict[int, float | None]) -> str:
    explored = _explored(step)
    means = []
    for name, rows in (
        ("chosen by prediction", set(step.selected) - explored),
        ("drawn at random", explored),
    ):
        values = [value for row in rows if (value := utility[row]) is not None]
        if rows:
            mean = f" (mean utility {fmean(values):.2g})" if values else ""
            means.append(f"{len(rows)} {name}{mean}")
    return (
        f"Step {step.step + 1}: {len(step.examples) * step.per_prompt} rollouts of "
        f"{len(step.examples)} questions, {len(step.candidates)} of them with a crop to ask about. "
        f"The teacher was asked about {len(step.selected)}: {' and '.join(means)}."
    )
