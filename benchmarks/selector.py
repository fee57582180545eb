"""Milliseconds a step that selection costs, at the paper's 224 candidates, on one core.

Run `python benchmarks/selector.py`; the target for the sum is 20 ms. Responses run up to the length
limit of 1,024 tokens, where the features cost most.
"""

from __future__ import annotations

import statistics
from time import perf_counter

import torch

from bas_opd.select import LearnedSelector, features_from, query_budget
from bas_opd.types import Features

ROWS, TOKENS, STEPS = 224, 1024, 30


def main() -> None:
    """Time the steps that select by prediction and print the median of each part."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    selector = LearnedSelector()
    seconds: dict[str, list[float]] = {"features": [], "select": [], "learn": []}
    for step in range(STEPS):
        nll, entropies = torch.rand(2, ROWS, TOKENS)
        lengths = torch.randint(TOKENS // 2, TOKENS + 1, (ROWS,))
        lengths[0] = TOKENS
        by_prediction = selector.is_trained

        marks = [perf_counter()]
        values = features_from(
            -nll,
            lengths,
            entropies=entropies,
            prompt_lengths=[1000] * ROWS,
            crop_areas=[0.1] * ROWS,
        )
        marks.append(perf_counter())
        features = Features(rows=tuple(range(ROWS)), values=values)
        selection = selector.select(features, query_budget(0.25, ROWS), step=step)
        marks.append(perf_counter())
        selector.learn(features, {row: float(values[row, 0]) for row in selection.rows}, step=step)
        marks.append(perf_counter())
        if by_prediction:
            for part, start, end in zip(seconds, marks, marks[1:], strict=False):
                seconds[part].append(end - start)

    medians = {part: 1000 * statistics.median(times) for part, times in seconds.items()}
    for part, milliseconds in (medians | {"sum": sum(medians.values())}).items():
        print(f"{part:<9}{milliseconds:7.2f} ms")


if __name__ == "__main__":
    main()
