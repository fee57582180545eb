"""The comparison of query policies at the scale of FineSearch and the small model."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bas_opd.config import preset
from bas_opd.data.records import PreparedSet
from bas_opd.errors import ConfigError, DataError
from bas_opd.model.base import LEARNT_KINDS, small_base
from bas_opd.reproduce.arms import ARMS, BASE, FULL, check_arms
from bas_opd.reproduce.results import RunResult, read_result
from bas_opd.reproduce.runner import Inputs, Run, plan_runs, run_all
from bas_opd.reproduce.table import policies_table
from bas_opd.run.progress import Progress
from bas_opd.text import markdown_table

SWEPT = (FULL, "random25")
"""The whole budget and a quarter of it, both without a selector that a rate could favour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the user asked for; paths are absolute."""

    out: Path
    scale: str = "small"
    arms: tuple[str, ...] | None = None
    seeds: int = 5
    jobs: int | None = None
    """Runs in parallel; none: one per CPU core."""
    device: str = "auto"
    data: Path | None = None
    base: Path | None = None
    train_n: int = 3120
    test_n: int = 4200
    rates: str | None = None
    overrides: tuple[str, ...] = ()


def reproduce(request: Request, progress: Progress) -> str:
    """Make every run that is missing, and return the table."""
    if request.scale != "small":
        folder = preset("qwen3.5-4b").parent
        raise ConfigError(
            f"The scale {request.scale!r} cannot be reproduced by one command; only small can. For "
            "real models there are recipes, configs/qwen3.5-4b.toml and configs/qwen3.5-9b.toml "
            f"(installed in {folder}), each for `bas-opd train`."
        )
    rates = None if request.rates is None else parse_rates(request.rates)
    arms = check_arms(request.arms or ARMS)
    inputs = common_inputs(request, progress, split="test" if rates is None else "val")
    if rates is None:
        runs = plan_runs(inputs, request.out / "results", arms=arms, seeds=request.seeds)
    else:
        swept = SWEPT if request.arms is None else [arm for arm in arms if arm != BASE]
        runs = plan_sweep(inputs, request.out / "sweep", rates, swept)
    jobs = request.jobs or os.cpu_count() or 1
    run_all(runs, jobs=jobs, logs=request.out / "logs", progress=progress)
    results = [read_result(run.result) for run in runs]
    return policies_table(results) if rates is None else sweep_table(results)


def common_inputs(request: Request, progress: Progress, *, split: Literal["val", "test"]) -> Inputs:
    """Return what all runs share; splits of FineSearch that are missing are drawn."""
    folder = request.data or request.out / "data"
    n = request.test_n if split == "test" else min(1000, request.test_n)
    return Inputs(
        out=request.out,
        base=request.base or small_base(),
        train=_split(folder, "train", request.train_n, progress),
        questions=_split(folder, split, n, progress),
        split=split,
        device=request.device,
        overrides=request.overrides,
    )


def _split(
    folder: Path, split: Literal["train", "val", "test"], n: int, progress: Progress
) -> PreparedSet:
    """Load a split, or draw it if there is none."""
    place = folder / split
    if not place.exists():
        from bas_opd.data.finesearch import make_finesearch

        progress.message(f"Drawing {place}.")
        workers = os.cpu_count() or 1
        return make_finesearch(
            place, split=split, size="small", n=n, kinds=LEARNT_KINDS, workers=workers
        )
    prepared = PreparedSet.load(place)
    if len(prepared) != n:
        raise DataError(
            f"{place} has {len(prepared):,} examples, but {n:,} were asked for. Ask for as many as "
            "it has, give another folder, or remove this one."
        )
    return prepared


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
    inputs: Inputs, results: Path, rates: Sequence[float], arms: Sequence[str] = SWEPT
) -> list[Run]:
    """Return the base, and one run of each swept arm at each rate."""
    runs = plan_runs(inputs, results, arms=[BASE], seeds=1)
    for rate in rates:
        at_rate = replace(inputs, overrides=(*inputs.overrides, f"optim.learning_rate={rate:g}"))
        runs += plan_runs(at_rate, results, arms=arms, seeds=1, label=f"-lr{rate:g}")
    return runs


def sweep_table(results: Sequence[RunResult]) -> str:
    """Return the accuracies on val as a Markdown table with one row per rate."""
    base = next(result for result in results if result.arm == BASE)
    trained = {(each.learning_rate, each.arm): each.mean for each in results if each.arm != BASE}
    arms = list(dict.fromkeys(arm for _, arm in trained))
    rows = [[BASE, *[f"{base.mean:.2%}"] * len(arms)]]
    for rate in sorted({rate for rate, _ in trained}):
        means = [trained[rate, arm] for arm in arms]
        rows.append([f"{rate:g}", *(f"{m:.2%} ({100 * (m - base.mean):+.2f})" for m in means)])
    table = markdown_table(["learning rate", *arms], rows)
    return f"{table}\n\nMean over kinds of {base.n:,} {base.split} questions, one seed.\n"
