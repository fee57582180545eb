"""A picture of one step: a column for each prompt, a mark for each of its rollouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from bas_opd.report.charts.model import Axis, Chart, Key, Mark, Panel
from bas_opd.report.selection import drawn_rows
from bas_opd.run.record import QueryRecord
from bas_opd.select.rules import PolicyRule

CELL = 14
"""Pixels of a page for each rollout, in both directions."""
STATES = {
    "ranked": "asked, chosen by score",
    "every": "asked, as every candidate",
    "explored": "asked, drawn at random",
    "passed-over": "not asked",
    "no-crop": "no crop, cannot be asked",
}


def shown_step(steps: Sequence[QueryRecord]) -> QueryRecord:
    """Return the last step whose rows were chosen by prediction, or else the last."""
    ranked = [step for step in steps if step.score_of]
    return (ranked or steps)[-1]


def step_drawing(step: QueryRecord, rule: PolicyRule) -> Chart:
    """Draw a step of a run with that policy."""
    utility = dict(zip(step.selected, step.utility, strict=True))
    largest = max((*(value for value in utility.values() if value is not None), 1e-12))
    marks = []
    for row, state in enumerate(_states(step, rule)):
        column, place = divmod(row, step.per_prompt)
        observed = utility.get(row)
        # The area of a mark follows the utility, but one near zero can still be seen.
        grown = math.sqrt(max(0.0, observed or 0.0) / largest)
        marks.append(
            Mark(
                at=(column + 0.5, -place - 0.5),
                style=state,
                title=_title(step, row, observed),
                size=0.5 if state == "passed-over" else 0.7 + 1.25 * grown,
            )
        )
    used = {mark.style for mark in marks}
    panel = Panel(
        x=Axis(high=len(step.examples)), y=Axis(low=-step.per_prompt, high=0), shapes=tuple(marks)
    )
    return Chart(
        title="One step",
        label=_sentence(step, utility, rule),
        panels=(panel,),
        keys=tuple(
            Key(label=words, style=state, forms=("mark",))
            for state, words in STATES.items()
            if state in used
        ),
        caption="A column is one question, a mark one of its sampled answers; the larger the mark, "
        "the higher its utility.",
        width=len(step.examples) * CELL,
        height=step.per_prompt * CELL,
    )


def _states(step: QueryRecord, rule: PolicyRule) -> list[str]:
    """Return the state of each row."""
    states = ["no-crop"] * (len(step.examples) * step.per_prompt)
    for rows, state in (
        (step.candidates, "passed-over"),
        (step.selected, "ranked"),
        (drawn_rows(step), "every" if rule.asks_everything else "explored"),
    ):
        for row in rows:
            states[row] = state
    return states


def _title(step: QueryRecord, row: int, observed: float | None) -> str:
    parts = [f"{step.examples[row // step.per_prompt]}, rollout {row % step.per_prompt + 1}"]
    if (predicted := step.score_of.get(row)) is not None:
        parts.append(f"predicted utility {predicted:.2g}")
    if observed is not None:
        parts.append(f"observed utility {observed:.2g}")
    return "; ".join(parts)


def _sentence(step: QueryRecord, utility: dict[int, float | None], rule: PolicyRule) -> str:
    drawn = drawn_rows(step)
    parts = []
    for name, rows in (
        (" chosen by their score", set(step.selected) - drawn),
        (", as every candidate" if rule.asks_everything else " drawn at random", drawn),
    ):
        values = [value for row in rows if (value := utility[row]) is not None]
        if rows:
            mean = f" (mean utility {fmean(values):.2g})" if values else ""
            parts.append(f"{len(rows)}{name}{mean}")
    asked = f"{len(step.selected)}: {' and '.join(parts)}" if len(parts) > 1 else "".join(parts)
    return (
        f"Step {step.step + 1}: {len(step.examples) * step.per_prompt} rollouts of "
        f"{len(step.examples)} questions, {len(step.candidates)} of them with a crop to ask about. "
        f"The teacher was asked about {asked or 'none'}."
    )
