"""Examples to look at, with their pictures embedded in the page itself."""

from __future__ import annotations

import base64
import io
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import mul
from pathlib import Path

from PIL import Image

from bas_opd.data.images import Box, Size, open_crop, open_image
from bas_opd.data.records import PreparedSet
from bas_opd.errors import DataError
from bas_opd.report.run import Run, ShownRow
from bas_opd.report.selection import drawn_rows
from bas_opd.run.record import GradedRecord, PolicyRecord, QueryRecord, StepRecord
from bas_opd.types import Example, Grade

WANTED = 12
PROMPTS = 6
"""Prompts that are shown with several responses each."""
LARGEST = 560
"""Longest side of an embedded picture, in pixels."""
QUALITY = 82


@dataclass(frozen=True, slots=True, kw_only=True)
class Framed:
    """A picture with its crop box, and the crop."""

    size: Size
    """Of the whole picture, in whose pixels the box is."""
    box: Box | None
    picture: str
    """A data URL, as is `crop`."""
    crop: str | None
    """None where the method shows it to nobody."""


def framed(example: Example, *, with_crop: bool = True) -> Framed:
    """Open and shrink the picture of an example and, if wanted, the crop that it has."""
    picture = open_image(example.image)
    box = None if example.crop is None else example.crop.box
    return Framed(
        size=picture.size,
        box=box if with_crop else None,
        picture=_data_url(picture),
        crop=_data_url(open_crop(example)) if with_crop else None,
    )


def varied(
    examples: Iterable[Example], wanted: int, shown: Sequence[Example] = ()
) -> list[Example]:
    """Take examples in order, preferring the kinds taken least so far, then new pictures.

    New are those that look least like the ones taken, and like those `shown` before.
    """
    left, chosen = list(examples), []
    looks = {each.id: _look(each) for each in (*left, *shown)}
    taken = Counter[str | None]()
    likeness = {
        each.id: max((_likeness(looks[each.id], looks[one.id]) for one in shown), default=0.0)
        for each in left
    }
    while left and len(chosen) < wanted:
        pick = min(left, key=lambda each: (taken[each.kind], likeness[each.id]))
        left.remove(pick)
        chosen.append(pick)
        taken[pick.kind] += 1
        for each in left:
            alike = _likeness(looks[each.id], looks[pick.id])
            likeness[each.id] = max(likeness[each.id], alike)
    return chosen


def _look(example: Example) -> tuple[float, ...]:
    """Return a picture in a few grey pixels of mean 0 and length 1."""
    grey = open_image(example.image).convert("L").resize((8, 8), Image.Resampling.BOX)
    pixels = list(grey.tobytes())
    mean = sum(pixels) / len(pixels)
    length = math.hypot(*(pixel - mean for pixel in pixels)) or 1.0
    return tuple((pixel - mean) / length for pixel in pixels)


def _likeness(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the correlation of two pictures, or of one and the other's mirror image."""
    mirrored = [other[8 * row + 7 - column] for row in range(8) for column in range(8)]
    return max(sum(map(mul, one, each)) for each in (other, mirrored))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownExample:
    """One rollout as the page shows it."""

    row: ShownRow
    step: int
    """Counted from 1."""
    kind: str
    is_ranked: bool
    framed: Framed | None
    """None where the picture is not available."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedRollout:
    """One response to a prompt, and what it earned."""

    response: str
    grade: Grade | None
    """None where responses are not graded."""
    is_judged: bool
    is_learned: bool
    reward: float | None
    advantage: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPrompt:
    """A prompt with the responses to it that are on record, as the page shows it."""

    step: int
    """Counted from 1."""
    question: str
    answer: str
    kind: str
    rollouts: tuple[GradedRollout, ...]
    framed: Framed | None

    @property
    def outcomes(self) -> int:
        """How many different grades its responses have."""
        return len({each.grade for each in self.rollouts})


def training_set(run: Run, folder: Path | None = None) -> Mapping[str, Example]:
    """Return the examples a run was trained on by their ids; none if they are no longer there.

    The fingerprint must match, so nothing else that the records name is ever opened. A folder that
    a user names must hold that set.
    """
    wanted = run.started.data.fingerprint
    try:
        found = PreparedSet.load(folder or Path(run.started.data.folder))
    except DataError:
        if folder is not None:
            raise
        return {}
    if found.fingerprint == wanted:
        return {example.id: example for example in found.examples}
    if folder is not None:
        raise DataError(
            f"{folder} is not the set that the run in {run.path} was trained on: its fingerprint "
            f"is {found.fingerprint[:12]}, not {wanted[:12]}. Name the right folder with --data."
        )
    return {}


def shown_examples(run: Run, examples: Mapping[str, Example]) -> list[ShownExample]:
    """Choose rows with a known utility, one of each prompt, and open their pictures."""
    newest = {
        row.example: (step, row)
        for step in run.queries
        for row in step.shown
        if row.utility is not None
    }
    kinds = {name: examples[name].kind if name in examples else "" for name in newest}
    return [
        ShownExample(
            row=row,
            step=step.step + 1,
            kind=kinds[row.example],
            is_ranked=step.is_ranked and row.row not in drawn_rows(step),
            framed=_framed(examples.get(row.example), with_crop=run.config.needs_crops),
        )
        for step, row in _spread(list(newest.values()), kinds)
    ]


def _spread(
    rows: Sequence[tuple[QueryRecord, ShownRow]], kinds: Mapping[str, str]
) -> list[tuple[QueryRecord, ShownRow]]:
    """Cut the rows, by falling utility, into as many parts as are wanted; take one of each part."""
    order = sorted(rows, key=lambda pair: (-(pair[1].utility or 0.0), pair[1].example))
    wanted = min(WANTED, len(order))
    taken: Counter[str] = Counter()
    chosen = []
    for part in range(wanted):
        members = order[len(order) * part // wanted : len(order) * (part + 1) // wanted]
        pick = min(members, key=lambda pair: taken[kinds[pair[1].example]])
        taken[kinds[pick[1].example]] += 1
        chosen.append(pick)
    return chosen


def shown_prompts(run: Run, examples: Mapping[str, Example]) -> list[ShownPrompt]:
    """Choose prompts whose responses are on record, from the first steps to the last.

    Of neighbouring steps, the one whose responses differ most in their grades is shown.
    """
    prompts = [
        (example, _prompt(step, rows, kind=examples[example].kind if example in examples else ""))
        for step in run.steps
        if isinstance(step, GradedRecord)
        for example, rows in _by_example(step).items()
    ]
    wanted = min(PROMPTS, len(prompts))
    parts = [
        prompts[len(prompts) * part // wanted : len(prompts) * (part + 1) // wanted]
        for part in range(wanted)
    ]
    chosen = [max(part, key=lambda pair: pair[1].outcomes) for part in parts]
    with_crop = run.config.needs_crops
    return [
        replace(prompt, framed=_framed(examples.get(example), with_crop=with_crop))
        for example, prompt in chosen
    ]


def _by_example(step: StepRecord) -> dict[str, list[ShownRow]]:
    found: dict[str, list[ShownRow]] = {}
    for row in step.shown:
        found.setdefault(row.example, []).append(row)
    return found


def _prompt(step: GradedRecord, rows: Sequence[ShownRow], *, kind: str) -> ShownPrompt:
    policy = step if isinstance(step, PolicyRecord) else None
    learned = set(step.rows or ())
    return ShownPrompt(
        step=step.step + 1,
        question=rows[0].question,
        answer=rows[0].answer,
        kind=kind,
        rollouts=tuple(
            GradedRollout(
                response=each.response,
                grade=step.grades[each.row] if step.grades else None,
                is_judged=each.row in step.judged,
                is_learned=each.row in learned,
                reward=policy.rewards[each.row] if policy else None,
                advantage=policy.advantages[each.row] if policy else None,
            )
            for each in rows
        ),
        framed=None,
    )


def _framed(example: Example | None, *, with_crop: bool) -> Framed | None:
    if example is None or (with_crop and example.crop is None):
        return None
    try:
        return framed(example, with_crop=with_crop)
    except DataError:
        return None


def _data_url(picture: Image.Image) -> str:
    small = picture.copy()
    small.thumbnail((LARGEST, LARGEST), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    # Without subsampling of colours, for a crop may be a few pixels that are asked about.
    small.save(stream, "JPEG", quality=QUALITY, subsampling=0)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode('ascii')}"
