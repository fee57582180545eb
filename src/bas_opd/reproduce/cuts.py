"""Accuracy at equal cost: where each run stood when it had spent as much as the others.

A run is evaluated every few steps. Between two evaluations its accuracy is taken to change evenly
with its cost. The cost that all are compared at is the smallest that a trained run ends with, so
that no run is continued beyond its last step. An arm that costs far less than full querying would
put that cost where the others have hardly begun: it is shown where it ended. Needs no torch.
"""

from __future__ import annotations

from itertools import accumulate

import numpy

from bas_opd.reproduce.arms import FULL
from bas_opd.reproduce.comparing import Arms
from bas_opd.reproduce.results import RunResult
from bas_opd.stats.intervals import mean_interval, paired_difference
from bas_opd.text import listed, markdown_table, plus_minus

CUTS = {
    "steps": "equal steps",
    "responses": "equal responses",
    "total_tokens": "equal total tokens",
}
"""What is held equal, and its name in the table."""
LEAST = 1 / 3
"""An arm that costs less than this share of full querying does not say at which cost to compare."""


def cuts_table(arms: Arms) -> str | None:
    """Return accuracies at equal cost and their differences to full querying.

    None where a trained run was not evaluated during training.
    """
    trained = {arm: [r for r in runs if r.seed is not None] for arm, runs in arms.items()}
    trained = {arm: runs for arm, runs in trained.items() if runs}
    every = [run for runs in trained.values() for run in runs]
    if not every or not all(len(run.curve) > 1 and _spent(run, "responses") for run in every):
        return None
    budgets, cheap = {}, {}
    for cut in CUTS:
        ends = {arm: min(_spent(run, cut)[-1] for run in runs) for arm, runs in trained.items()}
        least = LEAST * ends.get(FULL, 0.0)
        budgets[cut] = min(end for end in ends.values() if end >= least)
        cheap[cut] = [arm for arm, end in ends.items() if end < least]
    header, rows = ["arm"], [[arm] for arm in trained]
    for cut, title in CUTS.items():
        header += [f"{title}: steps", "accuracy", *([f"minus {FULL}"] if FULL in trained else [])]
        reached = {
            arm: {run.seed: _reached(run, cut, budgets[cut]) for run in runs}
            for arm, runs in trained.items()
        }
        for row, (arm, by_seed) in zip(rows, reached.items(), strict=True):
            row.append(plus_minus(mean_interval([step for step, _ in by_seed.values()]), ".0f"))
            row.append(plus_minus(mean_interval([a for _, a in by_seed.values()]), ".1f", 100))
            if FULL in trained:
                row.append(_minus(by_seed, reached[FULL]) if arm != FULL else "-")
    n = min(point.n for run in every for point in run.curve)
    left_out = "".join(
        f" Of {listed(those)}, which cost less than a third of full querying's "
        f"{CUTS[cut].split()[-1]}, it is the accuracy at the end."
        for cut, those in cheap.items()
        if those
    )
    return (
        f"{markdown_table(header, rows)}\n\n"
        f"Each run where it stood after {budgets['steps']:,.0f} steps, after "
        f"{budgets['responses']:,.0f} sampled responses, by student or teacher, and after "
        f"{budgets['total_tokens'] / 1e6:,.1f} million total tokens: the least that a run ended "
        f"with. Measured during training on {n:,} of the test questions, between two evaluations "
        f"by a straight line; intervals are over seeds, differences paired by seed.{left_out}"
    )


def _minus(
    mine: dict[int | None, tuple[float, float]], full: dict[int | None, tuple[float, float]]
) -> str:
    common = sorted(mine.keys() & full.keys(), key=str)
    if not common:
        return "-"
    gap = paired_difference([mine[seed][1] for seed in common], [full[seed][1] for seed in common])
    return plus_minus(gap, "+.2f", 100)


def _reached(run: RunResult, cut: str, budget: float) -> tuple[float, float]:
    """Return how many steps a run had taken at a cost, and its accuracy there."""
    spent = _spent(run, cut)
    costs = [spent[point.step] for point in run.curve]
    steps = float(numpy.interp(budget, spent, range(len(spent))))
    return steps, float(numpy.interp(budget, costs, [point.accuracy for point in run.curve]))


def _spent(run: RunResult, cut: str) -> list[float]:
    """Return what a run had spent before each step, and at its end."""
    if run.steps is None:
        return []
    each = [1] * len(run.steps.loss) if cut == "steps" else getattr(run.steps, cut)
    return [] if each is None else [0.0, *map(float, accumulate(each))]
