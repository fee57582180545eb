"""Choosing rows that cover the prompts: a concave sum over the different texts of each prompt.

Not of the paper. Needs no torch, so that a choice can be repeated from its records.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

P = TypeVar("P", bound=Hashable)
"""Whatever names a prompt."""


def mid_ranks(scores: Sequence[float]) -> list[float]:
    """Return how much of the step each score reaches, within (0, 1): (lower + ties / 2) / n.

    A score ties with itself. Only the order of the scores counts, so their scale and sign do not.
    """
    ordered = sorted(scores)
    return [
        (bisect_left(ordered, score) + bisect_right(ordered, score)) / (2 * len(ordered))
        for score in scores
    ]


def worth(total: float) -> float:
    """Return what a prompt is worth by the sum of its gains: concave, so each row adds less."""
    return math.sqrt(total)


def cover(
    gains: Sequence[float],
    prompts: Sequence[P],
    texts: Sequence[Hashable] | None = None,
    costs: Sequence[int] | None = None,
    openings: Mapping[P, int] | None = None,
    *,
    limit: int,
) -> list[int]:
    """Choose rows greedily for F(S) = sum over prompts of sqrt(sum of gains of different texts).

    Each choice is the row that adds most to F for its cost and still fits into `limit`; of equals,
    the first. Where rows of a prompt differ in cost, this holds for its first row only: each prompt
    offers its further rows in the order of their gain for their own cost, which is nearly that of
    what they add. Rows are numbered as in `gains` and come back in the order chosen.

    `costs` is what each row costs, one if not given; `openings` what the first chosen row of a
    prompt costs in addition. A text that its prompt has already adds nothing and is never chosen,
    so some of the limit may stay unspent. Without `texts`, all differ.
    """
    _check(gains, prompts, texts, costs)
    own = [1] * len(gains) if costs is None else costs
    total = dict.fromkeys(prompts, 0.0)
    opening = {prompt: (openings or {}).get(prompt, 0) for prompt in total}

    def grouped(rate: Callable[[int], float]) -> dict[P, list[int]]:
        """Order the rows of each prompt: the best comes last, where it is cheap to take away."""
        rows: dict[P, list[int]] = {}
        for row in sorted(range(len(gains)), key=lambda row: (rate(row), -row)):
            rows.setdefault(prompts[row], []).append(row)
        return rows

    # The first row of a prompt also pays for the prompt, so another one may be best for that.
    waiting = grouped(lambda row: _rate(worth(gains[row]), own[row] + opening[prompts[row]]))
    further = grouped(lambda row: _rate(gains[row], own[row]))
    heap: list[tuple[float, int]] = []

    def offer(prompt: P) -> None:
        """Enter the next row of a prompt; what it adds depends on its own prompt alone."""
        if rows := waiting[prompt]:
            row = rows[-1]
            added = worth(total[prompt] + gains[row]) - worth(total[prompt])
            heapq.heappush(heap, (-_rate(added, own[row] + opening[prompt]), row))

    for prompt in total:
        offer(prompt)
    chosen: list[int] = []
    seen: set[tuple[P, Hashable]] = set()
    while heap:
        row = heapq.heappop(heap)[1]
        prompt = prompts[row]
        waiting[prompt].pop()
        text = (prompt, row if texts is None else texts[row])
        cost = own[row] + opening[prompt]
        # A row that does not fit is passed over for good. It could only become cheaper when
        # another row opens its prompt, and that row pays the opening out of the same limit: from
        # own + opening > left follows own > left - opening, which is all that is left at most.
        if cost <= limit and text not in seen and gains[row] > 0:
            chosen.append(row)
            seen.add(text)
            limit -= cost
            if not total[prompt]:
                waiting[prompt] = further[prompt]
            total[prompt] += gains[row]
            opening[prompt] = 0
        offer(prompt)
    return chosen


def _rate(gain: float, cost: int) -> float:
    """Return the gain for each unit of cost; what costs nothing comes first."""
    return gain / cost if cost else math.inf


def _check(
    gains: Sequence[float],
    prompts: Sequence[Hashable],
    texts: Sequence[Hashable] | None,
    costs: Sequence[int] | None,
) -> None:
    for name, column in (("prompts", prompts), ("texts", texts), ("costs", costs)):
        if column is not None and len(column) != len(gains):
            raise ValueError(
                f"{len(gains)} gains, but {len(column)} {name}; give one for each row."
            )
    for row, gain in enumerate(gains):
        if not 0 <= gain < math.inf:
            raise ValueError(f"The gain of row {row} is {gain}; it must be finite and at least 0.")
    for row, cost in enumerate(costs or ()):
        if cost < 0:
            raise ValueError(f"The cost of row {row} is {cost}; it must be at least 0.")
