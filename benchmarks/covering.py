"""The time of a covering choice, on one core.

Run `python benchmarks/covering.py`. Required: a whole choice among the paper's 224 candidates,
prediction included, in under 10 ms; `cover` among 20,000 rows, in 2,500 prompts or in one, in under
1 s.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from time import perf_counter

import torch

from bas_opd.select import CoveringSelector, cover, mid_ranks
from bas_opd.types import Budget, Candidates, Costs

ROWS, PER_PROMPT, MANY = 224, 8, 20_000


def median_ms(work: Callable[[], object], repeats: int) -> float:
    """Return the median time of some calls in milliseconds."""
    times = []
    for _ in range(repeats):
        started = perf_counter()
        work()
        times.append(perf_counter() - started)
    return 1000 * statistics.median(times)


def step_of(number: int) -> Candidates:
    """Return the candidates of a step, a quarter of them repeated texts."""
    generator = torch.Generator().manual_seed(number)
    return Candidates(
        rows=tuple(range(ROWS)),
        values=torch.rand(ROWS, 6, dtype=torch.float64, generator=generator),
        prompts=tuple(row // PER_PROMPT for row in range(ROWS)),
        texts=tuple((row % 6,) * 87 for row in range(ROWS)),
    )


def main() -> None:
    """Print each time beside what is required."""
    torch.set_num_threads(1)
    selector, candidates = CoveringSelector(), step_of(99)
    for step in range(10):
        seen = step_of(step)
        chosen = selector.select(seen, ROWS // 4, step=step).rows
        selector.learn(seen, {row: float(seen.values[row, 0]) for row in chosen}, step=step)
    costs = Costs(
        rows={row: 20 + row % 70 for row in range(ROWS)},
        prompts={row: row // PER_PROMPT for row in range(ROWS)},
        openings=dict.fromkeys(range(ROWS // PER_PROMPT), 300),
    )
    tokens = Budget(limit=4000, kind="processed_tokens", costs=costs)
    show("select, 224 rows, calls", 10, lambda: selector.select(candidates, 56, step=10))
    show("select, 224 rows, tokens", 10, lambda: selector.select(candidates, tokens, step=10))

    source = random.Random(0)
    scores = [source.random() for _ in range(MANY)]
    texts = [source.randrange(MANY) for _ in range(MANY)]
    prices = [source.randrange(1, 200) for _ in range(MANY)]
    for prompts in (2500, 1):
        places = [row % prompts for row in range(MANY)]
        name = f"cover, 20,000 rows in {prompts:,} prompt{'s' * (prompts > 1)}"
        show(name, 1000, lambda p=places: cover(mid_ranks(scores), p, texts, prices, limit=10**6))


def show(name: str, required: int, work: Callable[[], object]) -> None:
    """Print one median."""
    work()
    spent = median_ms(work, 20 if required < 100 else 5)
    print(f"{name:<38}{spent:8.2f} ms  (required: under {required:,})")


if __name__ == "__main__":
    main()
