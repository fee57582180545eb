"""From an order or from scores to the rows that a budget pays for. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

from bas_opd.select.covering import cover, mid_ranks
from bas_opd.types import Budget, Grade

GRADE_SCORES: dict[Grade, float] = {"right": 0.0, "unread": 0.5, "wrong": 1.0}
"""The more a response has to learn, the higher."""


def grade_scores(rows: Sequence[int], grades: Sequence[Grade] | None) -> dict[int, float]:
    """Score rows by whether they are right, as long as nothing is learned."""
    if grades is None:
        raise ValueError("Selection by correctness needs Candidates(..., grades=...).")
    return {row: GRADE_SCORES[grade] for row, grade in zip(rows, grades, strict=True)}


def in_order(
    order: Sequence[int], budget: Budget, *, limit: int | None = None, beside: Sequence[int] = ()
) -> list[int]:
    """Walk an order and take each row that still fits beside rows that are chosen already."""
    limit = budget.limit if limit is None else limit
    if budget.costs is None:
        return list(order[: max(0, limit - len(beside))])
    costs, left = budget.costs, limit - budget.spent(beside)
    opened = {costs.prompts.get(row) for row in beside}
    taken = []
    for row in order:
        prompt = costs.prompts.get(row)
        opening = 0 if prompt is None or prompt in opened else costs.openings.get(prompt, 0)
        cost = costs.rows[row] + opening
        if cost <= left:
            taken.append(row)
            left -= cost
            opened.add(prompt)
    return taken


def covering(
    order: Sequence[int],
    scores: Mapping[int, float],
    budget: Budget,
    *,
    prompts: Mapping[int, int],
    texts: Mapping[int, Hashable] | None,
    limit: int | None = None,
) -> list[int]:
    """Let scores choose rows by `cover`; of equals the earlier in `order`, rows without one last.

    A row without a score counts as lower than any.
    """
    costs = budget.costs
    chosen = cover(
        mid_ranks([scores.get(row, -math.inf) for row in order]),
        [prompts[row] for row in order],
        None if texts is None else [texts[row] for row in order],
        None if costs is None else [costs.rows[row] for row in order],
        None if costs is None else costs.openings,
        limit=budget.limit if limit is None else limit,
    )
    return [order[place] for place in chosen]
