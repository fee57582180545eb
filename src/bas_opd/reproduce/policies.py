"""The comparison of query policies at the scale of FineSearch and the small model.

Runs are made several at a time, each resumed where it stopped.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bas_opd.config import preset
from bas_opd.data.records import PreparedSet, read_manifest
from bas_opd.errors import BasOpdError, ConfigError, DataError, ModelError, RunDirectoryError
from bas_opd.files import sha256
from bas_opd.model.base import LEARNT_KINDS, small_base
from bas_opd.reproduce.arms import ARMS, BASE, FULL, arm_config, check_arms
from bas_opd.reproduce.pool import Work, run_side_by_side
from bas_opd.reproduce.results import Planned, Run, RunResult, identity, read_result
from bas_opd.reproduce.table import policies_table
from bas_opd.run.progress import Progress
from bas_opd.text import duration, markdown_table

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What all runs of a table share."""

    request: Request
    base: Path
    train: PreparedSet
    questions: PreparedSet
    split: Literal["val", "test"]
    """The split that the questions are of."""

    def settings(self, name: str) -> list[str]:
        """Return the settings of a run that is stored under a name."""
        return [
            *self.request.overrides,
            f"model.path={self.base}",
            f"model.device={self.request.device}",
            f"data.path={self.train.folder}",
            f"run.output={self.request.out / 'runs' / name}",
        ]


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
        request=request,
        base=request.base or small_base(),
        train=_split(folder, "train", request.train_n, progress),
        questions=_split(folder, split, n, progress),
        split=split,
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


def base_hash(base: Path) -> str:
    """Return the hash of a model's weights."""
    files = sorted(base.glob("*.safetensors"))
    if not files:
        raise ModelError(
            f"There are no weights (*.safetensors) in {base}. Give the folder of a model."
        )
    try:
        return "-".join(sha256(file) for file in files)
    except OSError as error:
        raise ModelError(f"The weights in {base} cannot be read: {error}.") from error


def plan_runs(
    inputs: Inputs, results: Path, *, arms: Sequence[str], seeds: int, label: str = ""
) -> list[Run]:
    """Return the runs of a table, seed by seed, so that a part of them is a table of fewer seeds.

    The base is evaluated once. `label` names runs of one arm and seed under other settings.
    """
    base, train, questions = base_hash(inputs.base), inputs.train, inputs.questions
    drawn = f"FineSearch, split {inputs.split}, size small"
    is_finesearch = read_manifest(questions.folder).source.startswith(drawn)
    runs = []
    for seed in range(seeds):
        for arm in arms:
            if arm == BASE and seed:
                continue
            name = BASE if arm == BASE else f"{arm}-{seed}{label}"
            config = arm_config(arm, seed, inputs.settings(name))
            planned = Planned(
                arm=arm,
                seed=None if arm == BASE else seed,
                identity=identity(
                    config, train=train.fingerprint, questions=questions.fingerprint, base=base
                ),
                overrides=list(inputs.request.overrides),
                learning_rate=config.optim.learning_rate,
                train=train.fingerprint,
                train_n=len(train),
                task="FineSearch" if is_finesearch else "Own data",
                split=inputs.split,
                questions=questions.fingerprint,
                base=base,
            )
            result = results / f"{name}.json"
            runs.append(
                Run(planned=planned, config=config, questions=questions.folder, result=result)
            )
    return runs


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
        overrides = (*inputs.request.overrides, f"optim.learning_rate={rate:g}")
        at_rate = replace(inputs, request=replace(inputs.request, overrides=overrides))
        runs += plan_runs(at_rate, results, arms=arms, seeds=1, label=f"-lr{rate:g}")
    return runs


def sweep_table(results: Sequence[RunResult]) -> str:
    """Return the accuracies on val as a Markdown table with one row per rate."""
    base = next(result for result in results if result.arm == BASE)
    trained = {
        (each.learning_rate, each.arm): each.accuracy for each in results if each.arm != BASE
    }
    arms = list(dict.fromkeys(arm for _, arm in trained))
    rows = [[BASE, *[f"{base.accuracy:.2%}"] * len(arms)]]
    for rate in sorted({rate for rate, _ in trained}):
        means = [trained[rate, arm] for arm in arms]
        rows.append([f"{rate:g}", *(f"{m:.2%} ({100 * (m - base.accuracy):+.2f})" for m in means)])
    table = markdown_table(["learning rate", *arms], rows)
    return f"{table}\n\nThe {base.metric.name} of {base.n:,} {base.split} questions, one seed.\n"


def start_worker() -> Work[Run]:
    """Import torch in the worker only: the parent does not need it."""
    from bas_opd.reproduce.worker import start

    return start()


def run_all(runs: Sequence[Run], *, jobs: int, logs: Path, progress: Progress) -> None:
    """Make every missing result; a run that fails does not stop the others."""
    missing = [run for run in runs if not is_settled(run)]
    if len(missing) < len(runs):
        progress.message(f"{len(runs) - len(missing)} of {len(runs)} results exist already.")
    jobs = max(1, min(jobs, len(missing)))
    for folder in {logs, *(run.result.parent for run in missing)}:
        folder.mkdir(parents=True, exist_ok=True)
    total = sum(run.steps for run in missing)
    progress.start(total)
    began, taken, ended, failures = time.monotonic(), Counter[str](), 0, list[str]()
    tasks = [replace(run, jobs=jobs) for run in missing]
    for run, event, content in run_side_by_side(tasks, jobs=jobs, start=start_worker, logs=logs):
        # A run that was trained before takes no steps, but counts as done.
        steps = {"stepped": content, "done": run.steps - taken[run.name], "failed": 0}[event]
        taken[run.name] += steps
        progress.advance(steps)
        if event == "stepped":
            continue
        if event == "failed":
            failures.append(run.name)
        ended += 1
        line = f"{ended}/{len(missing)} {run.name}: {'failed. ' * (event == 'failed')}{content}"
        done = taken.total()
        if done and ended < len(missing):
            line += f"  eta {duration((time.monotonic() - began) / done * (total - done))}"
        progress.message(line)
    if failures:
        raise BasOpdError(
            f"{len(failures)} of {len(missing)} runs failed: {', '.join(failures)}. "
            "Their reasons are above; rerun the same command to retry them and keep the others."
        )


def is_settled(run: Run) -> bool:
    """Return whether a run has its result; refuse one that is damaged or of another run."""
    if not run.result.exists():
        return False
    if read_result(run.result).identity != run.planned.identity:
        raise RunDirectoryError(
            f"{run.result} is a result with other settings, data or base model, and would be "
            "lost. Choose another --out, or remove it yourself."
        )
    return True
