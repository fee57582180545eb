"""The comparison of query policies at the scale of FineSearch and the small model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bas_opd.config import preset
from bas_opd.errors import ConfigError
from bas_opd.reproduce.arms import ARMS, BASE, check_arms
from bas_opd.reproduce.pool import Work
from bas_opd.reproduce.results import read_result
from bas_opd.reproduce.runner import Inputs, Run, plan_runs, run_all
from bas_opd.reproduce.sweep import SWEPT, parse_rates, plan_sweep, sweep_table
from bas_opd.reproduce.table import policies_table
from bas_opd.run.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the user asked for."""

    out: Path
    scale: str = "small"
    arms: tuple[str, ...] | None = None
    seeds: int = 5
    jobs: int = 1
    device: str = "auto"
    data: Path | None = None
    base: Path | None = None
    train_n: int = 3120
    test_n: int = 4200
    rates: str | None = None
    overrides: tuple[str, ...] = ()


def reproduce(request: Request, progress: Progress) -> str:
    """Make every run that is missing, and return the table."""
    _check_scale(request.scale)
    rates = None if request.rates is None else parse_rates(request.rates)
    arms = check_arms(request.arms or ARMS)
    out = request.out.resolve()
    inputs = common_inputs(request, progress, split="test" if rates is None else "val")
    if rates is None:
        runs = plan_runs(out, out / "results", inputs, arms=arms, seeds=request.seeds)
    else:
        swept = SWEPT if request.arms is None else [arm for arm in arms if arm != BASE]
        runs = plan_sweep(out, inputs, rates, swept)
    run_all(runs, jobs=request.jobs, logs=out / "logs", progress=progress, start=start_worker)
    if rates is not None:
        return sweep_table(runs)
    return policies_table([read_result(run.result) for run in runs])


def start_worker() -> Work[Run]:
    """Import torch in the worker only: the parent does not need it."""
    from bas_opd.reproduce.worker import start

    return start()


def common_inputs(request: Request, progress: Progress, *, split: Literal["val", "test"]) -> Inputs:
    """Return what all runs share; data sets that are missing are drawn."""
    from bas_opd.reproduce.sets import Sizes, questions, training_set

    folder = request.out.resolve() / "data" if request.data is None else request.data.resolve()
    sizes = Sizes(train=request.train_n, val=min(1000, request.test_n), test=request.test_n)
    for name in ("train", split):
        if not (folder / name).exists():
            progress.message(f"Drawing {folder / name}.")
    train = training_set(folder, sizes)
    return Inputs(
        base=_base(request.base),
        train=train.folder,
        train_fingerprint=train.fingerprint,
        train_n=len(train),
        questions=questions(folder, split, sizes),
        device=request.device,
        overrides=request.overrides,
    )


def _base(given: Path | None) -> Path:
    if given is not None:
        return given.resolve()
    from bas_opd.model.base import small_base

    return small_base()


def _check_scale(scale: str) -> None:
    if scale != "small":
        folder = preset("qwen3.5-4b").parent
        raise ConfigError(
            f"The scale {scale!r} cannot be reproduced by one command; only small can. For real "
            "models there are recipes, configs/qwen3.5-4b.toml and configs/qwen3.5-9b.toml "
            f"(installed in {folder}), each for `bas-opd train`."
        )
