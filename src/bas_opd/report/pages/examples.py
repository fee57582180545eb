"""A dozen rollouts to look at: of many kinds, from the least useful to the most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bas_opd.data.records import PreparedSet
from bas_opd.errors import DataError
from bas_opd.report.pages.pictures import Framed, framed
from bas_opd.report.run import Run, ShownRow
from bas_opd.report.selection import drawn_rows
from bas_opd.run.record import QueryRecord
from bas_opd.text import counted
from bas_opd.types import Example

WANTED = 12
LONGEST = 2_000
"""Characters of a text that a page shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownExample:
    """One rollout as the page shows it."""

    row: ShownRow
    """Its texts cut where they are too long for a page."""
    step: int
    """Counted from 1."""
    kind: str
    is_ranked: bool
    framed: Framed | None
    """None where the picture is not available."""


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
    newest = {row.example: (step, row) for step, row in run.shown if row.utility is not None}
    kinds = {name: examples[name].kind if name in examples else "" for name in newest}
    return [
        ShownExample(
            row=_shortened(row),
            step=step.step + 1,
            kind=kinds[row.example],
            is_ranked=bool(step.score_of) and row.row not in drawn_rows(step),
            framed=_framed(examples.get(row.example)),
        )
        for step, row in _spread(list(newest.values()), kinds)
    ]


def _shortened(row: ShownRow) -> ShownRow:
    texts = {"question": row.question, "answer": row.answer, "response": row.response}
    return row.model_copy(update={name: _cut(text) for name, text in texts.items()})


def _cut(text: str) -> str:
    more = len(text) - LONGEST
    return text if more <= 0 else f"{text[:LONGEST]}… ({counted(more, 'more character')})"


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


def _framed(example: Example | None) -> Framed | None:
    if example is None or example.crop is None:
        return None
    try:
        return framed(example)
    except DataError:
        return None
