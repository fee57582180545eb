"""The sweep that chooses one learning rate for all policies, on the val split."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bas_opd.errors import ConfigError
from bas_opd.reproduce.arms import BASE, FULL
from bas_opd.reproduce.results import RunResult, read_result
from bas_opd.reproduce.runner import Inputs, Run, plan_runs
from bas_opd.text import markdown_table

SWEPT = (FULL, "random25")
"""The whole budget and a quarter of it, both without a selector that a rate could favour."""


def parse_rates(text: str) -> tuple[float, ...]:
    """Read `3e-5,1e-4` as learning rates."""
    try:
        rates = tuple(float(part) for part in text.split(","))
    except ValueError:
        rates = ()
    if not rates or not all(math.isfinite(rate) and rate > 0 for rate in rates):
        raise ConfigError(
            f"{text!r} is no list of learning rates. Write positive numbers separated by commas, "
            "as in 3e-5,1e-4."
        )
    return tuple(sorted(set(rates)))


def plan_sweep(
    out: Path, inputs: Inputs, rates: Sequence[float], arms: Sequence[str] = SWEPT
) -> list[Run]:
    """Return the base, and one run of each swept arm at each rate."""
    results = out / "sweep"
    runs = plan_runs(out, results, inputs, arms=[BASE], seeds=1)
    for rate in rates:
        at_rate = replace(inputs, overrides=(*inputs.overrides, f"optim.learning_rate={rate:g}"))
        runs += plan_runs(out, results, at_rate, arms=arms, seeds=1, label=f"-lr{rate:g}")
    return runs


def sweep_table(runs: Sequence[Run]) -> str:
    """Return the accuracies on val as a Markdown table with one row per rate."""
    results = [read_result(run.result) for run in runs]
    base = next(result for result in results if result.arm == BASE)
    trained = [result for result in results if result.arm != BASE]
    arms = list(dict.fromkeys(result.arm for result in trained))
    rows = [[BASE, *[f"{base.mean:.2%}"] * len(arms)]]
    for rate in sorted({result.learning_rate for result in trained}):
        at_rate = {result.arm: result for result in trained if result.learning_rate == rate}
        rows.append([f"{rate:g}", *(_cell(at_rate[arm], base) for arm in arms)])
    table = markdown_table(["learning rate", *arms], rows)
    return f"{table}\n\nMean over kinds of {base.n:,} {base.split} questions, one seed.\n"


def _cell(result: RunResult, base: RunResult) -> str:
    return f"{result.mean:.2%} ({100 * (result.mean - base.mean):+.2f})"
