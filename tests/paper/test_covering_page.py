"""The page on covering selection: the numbers of its sentences."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prose import sentences, unexplained

from bas_opd.select.covering import cover, mid_ranks, worth

FILE = Path(__file__).parents[2] / "docs/covering.md"
STEPS, PROMPTS, PER_PROMPT = 300, 7, 8
GIVEN = (
    *("FineSearch 2", "Utility (Eq. 9)", "the loss (Eq. 11)"),
    "1.1 ms among 224 candidates, 0.23 s among 20,000 (one core of an x86-64 cloud machine",
    "2026-11-16",
)
"""Names, dates, and what was timed (benchmarks/covering.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Rows of a step with a budget in processed tokens."""

    gains: Sequence[float]
    prompts: Sequence[int]
    texts: Sequence[int]
    costs: Sequence[int]
    openings: dict[int, int]
    limit: int

    @classmethod
    def drawn(cls, seed: int) -> Step:
        """Responses of 2 to 80 tokens, crops of 40 to 90, a quarter of what all would cost."""
        source, n = random.Random(seed), PROMPTS * PER_PROMPT
        costs = [source.randrange(2, 81) for _ in range(n)]
        openings = {prompt: source.randrange(40, 91) for prompt in range(PROMPTS)}
        return cls(
            gains=mid_ranks([source.random() for _ in range(n)]),
            prompts=[row // PER_PROMPT for row in range(n)],
            texts=[source.randrange(6) for _ in range(n)],
            costs=costs,
            openings=openings,
            limit=(sum(costs) + sum(openings.values())) // 4,
        )

    def offered(self) -> list[int]:
        """What `cover` chooses."""
        return cover(
            self.gains, self.prompts, self.texts, self.costs, self.openings, limit=self.limit
        )

    def greedy(self) -> list[int]:
        """Of all rows that fit, take the one that adds most for its cost, again and again."""
        total, left = dict.fromkeys(self.prompts, 0.0), self.limit
        chosen: list[int] = []
        while True:
            said = {(self.prompts[row], self.texts[row]) for row in chosen}
            best, best_rate, best_cost = None, -math.inf, 0
            for row, (prompt, text) in enumerate(zip(self.prompts, self.texts, strict=True)):
                cost = self.costs[row] + (0 if total[prompt] else self.openings[prompt])
                added = worth(total[prompt] + self.gains[row]) - worth(total[prompt])
                if cost <= left and (prompt, text) not in said and added / cost > best_rate:
                    best, best_rate, best_cost = row, added / cost, cost
            if best is None:
                return chosen
            chosen.append(best)
            left -= best_cost
            total[self.prompts[best]] += self.gains[best]

    def value(self, rows: Sequence[int]) -> float:
        """F(S) of rows with different texts."""
        total = dict.fromkeys(self.prompts, 0.0)
        for row in rows:
            total[self.prompts[row]] += self.gains[row]
        return sum(map(worth, total.values()))


def test_every_number_in_a_sentence_is_computed_or_given() -> None:
    second, third = (worth(n) - worth(n - 1) for n in (2, 3))
    steps = [Step.drawn(seed) for seed in range(STEPS)]
    chosen = [(step, step.offered(), step.greedy()) for step in steps]
    apart = [
        step.value(mine) / step.value(best) for step, mine, best in chosen if {*mine} != {*best}
    ]
    computed = {
        f"the second adds {second:.2f} of what the first adds, the third {third:.2f}",
        f"of {STEPS} random steps {len(apart)} differ from it, with {min(apart):.3f} of its F at "
        "worst",
    }
    assert unexplained(sentences(FILE), computed | set(GIVEN)) == []
