"""From an order or from scores to the rows that a budget pays for. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TypedDict

from bas_opd.budget import exploration_quota
from bas_opd.select.covering import cover, mid_ranks
from bas_opd.select.rules import ranked
from bas_opd.types import Budget, Grade


class Responses(TypedDict):
    """The prompt and the text of each row, which coverage needs; without texts, all differ."""

    prompts: Mapping[int, int]
    texts: Mapping[int, Hashable] | None


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


def best_rows(
    rows: Sequence[int],
    scores: Mapping[int, float],
    budget: Budget,
    *,
    limit: int | None = None,
    responses: Responses | None,
) -> list[int]:
    """Choose rows by their scores: the highest that fit or, with responses, those that cover."""
    if responses is None:
        return in_order(ranked(rows, scores), budget, limit=limit)
    return covering(sorted(rows), scores, budget, limit=limit, **responses)


def scored_share(
    rows: Sequence[int],
    scores: Mapping[int, float],
    budget: Budget,
    *,
    exploration: float | str | Decimal,
    responses: Responses | None,
) -> tuple[list[int], int]:
    """Choose the K - K_e highest scores; return them, and what they and exploration may cost."""
    limit = min(budget.limit, budget.spent(rows))
    explore = exploration_quota(exploration, limit)
    best = best_rows(rows, scores, budget, limit=limit - explore, responses=responses)
    # Without coverage, what no high score fits into is explored with; with it, what is left has
    # only repeated texts to pay for.
    return best, limit if responses is None else budget.spent(best) + explore


def explored_rows(
    order: Sequence[int],
    budget: Budget,
    *,
    limit: int,
    beside: Sequence[int],
    responses: Responses | None,
) -> list[int]:
    """Walk a random order and take what fits beside the best; to cover, no text twice."""
    fresh = order if responses is None else new_texts(order, responses, beside=beside)
    return in_order(fresh, budget, limit=limit, beside=beside)


def new_texts(
    order: Iterable[int], responses: Responses, *, beside: Iterable[int] = ()
) -> list[int]:
    """Leave out the rows whose prompt has their text already, from earlier rows or those beside."""
    prompts, texts = responses["prompts"], responses["texts"]
    if texts is None:
        return list(order)
    said, fresh = {(prompts[row], texts[row]) for row in beside}, []
    for row in order:
        if (text := (prompts[row], texts[row])) not in said:
            said.add(text)
            fresh.append(row)
    return fresh
