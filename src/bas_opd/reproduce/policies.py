"""Comparisons of arms at the scale of FineSearch and the small model: the policies, or a study.

Runs are made several at a time, each resumed where it stopped.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Literal

from bas_opd import disk
from bas_opd.data.finesearch.make import TITLES
from bas_opd.data.records import PreparedSet, read_manifest
from bas_opd.errors import (
    BasOpdError,
    ConfigError,
    DataError,
    ModelError,
    RunDirectoryError,
    explain_failure,
)
from bas_opd.files import sha256, write_text
from bas_opd.model.base import LEARNT_KINDS, small_base
from bas_opd.reproduce.arms import (
    ARMS,
    BASE,
    DEFAULT_ARMS,
    FULL,
    ArmSpec,
    arm_config,
    check_arms,
)
from bas_opd.reproduce.forecast import Forecast
from bas_opd.reproduce.pool import Work, run_side_by_side
from bas_opd.reproduce.questions import read_questions, write_questions
from bas_opd.reproduce.results import Planned, Run, RunResult, identity, read_result
from bas_opd.reproduce.study import STUDY, Study
from bas_opd.reproduce.table import folder_table, policies_table
from bas_opd.run.forecast import check_run, never_ranks, seldom_asks, undrawn_set
from bas_opd.run.progress import Progress
from bas_opd.text import counted, duration, markdown_table

SWEPT = (FULL, "random25")
"""The whole budget and a quarter of it, both without a selector that a rate could favour."""

Seeded = Mapping[ArmSpec, Sequence[int]]
"""Arms with the seeds of their runs; the base has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the user asked for; paths are absolute."""

    out: Path
    scale: str = "small"
    task: str = "finesearch"
    arms: tuple[str, ...] | None = None
    seeds: int = 5
    """Runs of each arm, unless a study says which."""
    study: Study | None = None
    only_seeds: tuple[int, ...] | None = None
    """The seeds of a study to run now, or those of its sweep; none: all, or the first."""
    jobs: int | None = None
    """Runs in parallel; none: one per CPU core."""
    device: str = "auto"
    data: Path | None = None
    base: Path | None = None
    train_n: int = 3120
    test_n: int = 4200
    val_n: int = 1000
    rates: str | None = None
    overrides: tuple[str, ...] = ()
    confirm: Callable[[Forecast], None] = lambda forecast: None
    """Called before anything is drawn or trained; it raises if the user does not want it."""

    @classmethod
    def of_study(
        cls,
        study: Study,
        *,
        out: Path,
        arms: tuple[str, ...] | None = None,
        seeds: tuple[int, ...] | None = None,
        jobs: int | None = None,
        device: str = "auto",
        data: Path | None = None,
        rates: str | None = None,
        confirm: Callable[[Forecast], None] = lambda forecast: None,
    ) -> Request:
        """Ask for a study, or a part of it, with the base, the data and the steps of its file."""
        return cls(
            out=out,
            task=study.declared.task,
            arms=arms,
            study=study,
            only_seeds=seeds,
            jobs=jobs,
            device=device,
            data=data,
            base=study.base,
            train_n=study.declared.train,
            test_n=study.declared.test,
            val_n=study.declared.val,
            rates=rates,
            overrides=study.overrides,
            confirm=confirm,
        )

    def questions_of(self, split: Literal["val", "test"]) -> int:
        """Return how many questions of a split every run answers."""
        return self.test_n if split == "test" else min(self.val_n, self.test_n)

    def chosen(self) -> Seeded:
        """Return the arms of the table with their seeds."""
        if self.study is None:
            return seeded(check_arms(self.arms or DEFAULT_ARMS), self.seeds)
        chosen = self.study.chosen(self.arms, self.only_seeds)
        if not any(chosen.values()) and ARMS[BASE] not in chosen:
            raise ConfigError("No arm that was named has one of these seeds in the study.")
        return chosen

    def swept(self) -> Seeded:
        """Return the arms of a sweep of learning rates, all with the same seeds."""
        if self.study is None:
            names = SWEPT if self.arms is None else check_arms(self.arms)
            arms = [ARMS[name] for name in names]
        else:
            arms = list(self.study.chosen(self.arms, None))
        return dict.fromkeys((arm for arm in arms if arm.preset), self.only_seeds or (0,))


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
            *self._evaluation(),
        ]

    def _evaluation(self) -> list[str]:
        """Evaluate during training where the study says so, but not to choose a learning rate."""
        study = self.request.study
        if study is None or study.declared.evaluate_every is None or self.split == "val":
            return []
        limit = study.declared.evaluate_on
        return [
            f"eval.every={study.declared.evaluate_every}",
            f"eval.data={self.questions.folder}",
            *([] if limit is None else [f"eval.limit={limit}"]),
        ]


def reproduce(request: Request, progress: Progress) -> str:
    """Make every run that is missing, and return the table."""
    if request.scale != "small":
        raise ConfigError(
            f"The scale {request.scale!r} cannot be reproduced by one command; only small can. For "
            "real models there are presets, qwen3.5-4b and qwen3.5-9b, each for `bas-opd train`; "
            "`bas-opd reproduce table3 --out DIR --scale paper` prints the commands."
        )
    rates = None if request.rates is None else parse_rates(request.rates)
    if rates is None and request.study is not None and request.study.declared.draft:
        raise ConfigError(
            f"{request.study.path} is a draft: its learning rates are not chosen yet. Compare some "
            "with --lr-sweep, write the best into the file, and remove draft = true."
        )
    arms = request.chosen() if rates is None else request.swept()
    results = request.out / ("results" if rates is None else "sweep")
    wanted = {
        f"{arm.name}-{seed}{label}": arm
        for arm, seeds in arms.items()
        for seed in (seeds if arm.preset else ())
        for label in ([""] if rates is None else [f"-lr{rate:g}" for rate in rates])
    }
    for notice in check_runs(request, arms):
        progress.message(notice)
    ask(request, [arm for name, arm in wanted.items() if not (results / f"{name}.json").exists()])
    inputs = common_inputs(request, progress, split="test" if rates is None else "val")
    if rates is None:
        runs = plan_runs(inputs, results, arms, study=request.study)
        check_runs(request, arms)  # on the pictures that were drawn meanwhile
        _claim(results, request.study)
        write_questions(results, inputs.questions)
    else:
        runs = plan_sweep(inputs, results, rates, arms)
    jobs = request.jobs or os.cpu_count() or 1
    run_all(runs, jobs=jobs, logs=request.out / "logs", progress=progress)
    if request.study is not None and rates is None:
        return folder_table(results)
    made = [read_result(run.result) for run in runs]
    return policies_table(made, read_questions(results)) if rates is None else sweep_table(made)


def check_runs(request: Request, arms: Seeded) -> list[str]:
    """Refuse a table with an arm that cannot be trained; return notices on the others.

    Before the data is drawn, every example counts as one with crop and answer. An arm that should
    learn to select but never would is refused in a study, whose file can be changed.
    """
    _weights(request.base or small_base(request.task))
    folder = (request.data or request.out / "data") / "train"
    data = PreparedSet.load(folder) if folder.exists() else undrawn_set(folder, request.train_n)
    notices = []
    for arm in arms:
        if not arm.preset:
            continue
        config = arm_config(
            arm, 0, [*request.overrides, "model.path=x", "data.path=x"], task=request.task
        )
        try:
            batches = check_run(config, data)
            random = never_ranks(config, batches)
            if random and request.study is not None:
                raise ConfigError(random)
        except BasOpdError as error:
            raise type(error)(f"The arm {arm.name} cannot be run. {error}") from None
        found = (seldom_asks(config, batches), random)
        notices += [f"{arm.name}: {notice}" for notice in found if notice]
    return notices


def ask(request: Request, missing: Sequence[str | ArmSpec]) -> None:
    """Tell the user what is to be made, unless it is there already; it must fit on the disk.

    `missing` has the arm of each run.
    """
    if not missing:
        return
    base, folder = request.base or small_base(request.task), request.data or request.out / "data"
    split = "test" if request.rates is None else "val"
    n = request.questions_of(split)
    sizes = {"train": request.train_n, split: n}
    settings = ["model.path=x", "data.path=x", *request.overrides]
    steps = arm_config(FULL, 0, settings, task=request.task).run.steps or 1
    drawn = [arm_config(arm, 0, settings, task=request.task).rollout for arm in missing]
    study, during = request.study, 0
    if request.rates is None and study is not None and study.declared.evaluate_every:
        each = min(study.declared.evaluate_on or n, n)
        during = each * (2 + steps // study.declared.evaluate_every)
    forecast = Forecast(
        out=request.out,
        runs=len(missing),
        steps=len(missing) * steps,
        rollouts=steps * sum(each.prompts_per_step * each.per_prompt for each in drawn),
        questions=len(missing) * (n + during),
        pictures=sum(n for split, n in sizes.items() if not (folder / split).exists()),
        jobs=min(request.jobs or os.cpu_count() or 1, len(missing)),
        device=request.device,
        model_bytes=sum(file.stat().st_size for file in base.glob("*.safetensors")),
    )
    forecast.check_disk()
    request.confirm(forecast)


def seeded(names: Sequence[str], seeds: int) -> Seeded:
    """Return known arms, each with so many seeds from 0 on."""
    return {ARMS[name]: range(seeds) for name in names}


def _claim(results: Path, study: Study | None) -> None:
    """Keep a copy of the study beside its results; a folder holds the results of one."""
    copy = results / STUDY
    if not any(results.glob("*.json")):  # one that failed before its first result claims nothing
        disk.unlink(copy)
    if copy.exists() and (study is None or sha256(copy) != study.hash):
        raise RunDirectoryError(
            f"{results} has the results of another study, or of this one before its file was "
            "changed. A study stays as it was declared; choose another --out."
        )
    if study is not None and not copy.exists():
        disk.make_folder(results, parents=True, exist_ok=True)
        write_text(copy, study.path.read_text(encoding="utf-8"))


def common_inputs(request: Request, progress: Progress, *, split: Literal["val", "test"]) -> Inputs:
    """Return what all runs share; splits of FineSearch that are missing are drawn."""
    folder = request.data or request.out / "data"
    return Inputs(
        request=request,
        base=request.base or small_base(request.task),
        train=_split(request.task, folder, "train", request.train_n, progress),
        questions=_split(request.task, folder, split, request.questions_of(split), progress),
        split=split,
    )


def _split(
    task: str, folder: Path, split: Literal["train", "val", "test"], n: int, progress: Progress
) -> PreparedSet:
    """Load a split, or draw it if there is none."""
    place = folder / split
    if not place.exists():
        from bas_opd.data.finesearch import make_finesearch

        progress.message(f"Drawing {place}.")
        workers = os.cpu_count() or 1
        return make_finesearch(
            place,
            split=split,
            size="small",
            n=n,
            kinds=LEARNT_KINDS,
            workers=workers,
            version=task,
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
    try:
        return "-".join(sha256(file) for file in _weights(base))
    except OSError as error:
        raise ModelError(f"The weights cannot be read. {explain_failure(error)}") from error


def _weights(base: Path) -> list[Path]:
    if files := sorted(base.glob("*.safetensors")):
        return files
    raise ModelError(f"There are no weights (*.safetensors) in {base}. Give the folder of a model.")


def plan_runs(
    inputs: Inputs, results: Path, arms: Seeded, *, label: str = "", study: Study | None = None
) -> list[Run]:
    """Return the runs of a table, seed by seed, so that a part of them is a table of fewer seeds.

    The base is evaluated once. `label` names runs of one arm and seed under other settings.
    """
    base, train, questions = base_hash(inputs.base), inputs.train, inputs.questions
    task = TITLES[inputs.request.task]
    drawn = f"{task}, split {inputs.split}, size small"
    is_finesearch = read_manifest(questions.folder).source.startswith(drawn)
    order = [(arm, None) for arm in arms if not arm.preset]
    for seed in sorted({seed for seeds in arms.values() for seed in seeds}):
        order += [(arm, seed) for arm, own in arms.items() if arm.preset and seed in own]
    runs = []
    for arm, seed in order:
        name = arm.name if seed is None else f"{arm.name}-{seed}{label}"
        config = arm_config(arm, seed or 0, inputs.settings(name), task=inputs.request.task)
        planned = Planned(
            study=None if study is None else study.hash,
            arm=arm.name,
            preset=arm.preset,
            settings=list(arm.settings),
            seed=seed,
            identity=identity(
                config, train=train.fingerprint, questions=questions.fingerprint, base=base
            ),
            overrides=list(inputs.request.overrides),
            learning_rate=config.optim.learning_rate,
            train=train.fingerprint,
            train_n=len(train),
            task=task if is_finesearch else "Own data",
            split=inputs.split,
            questions=questions.fingerprint,
            base=base,
        )
        result = results / f"{name}.json"
        runs.append(Run(planned=planned, config=config, questions=questions.folder, result=result))
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


def plan_sweep(inputs: Inputs, results: Path, rates: Sequence[float], arms: Seeded) -> list[Run]:
    """Return the base, and the runs of each swept arm at each rate: as many trials for each."""
    runs = plan_runs(inputs, results, {ARMS[BASE]: ()})
    for rate in rates:
        overrides = (*inputs.request.overrides, f"optim.learning_rate={rate:g}")
        at_rate = replace(inputs, request=replace(inputs.request, overrides=overrides))
        runs += plan_runs(at_rate, results, arms, label=f"-lr{rate:g}")
    return runs


def sweep_table(results: Sequence[RunResult]) -> str:
    """Return the accuracies on val as a Markdown table with one row per rate, and the best rates.

    Each is the mean over seeds. A rate that an arm was not trained with has a dash.
    """
    base = next(result for result in results if result.arm == BASE)
    means = _means(results)
    arms = list(means)
    rates = sorted({rate for reached in means.values() for rate in reached})
    rows = [[BASE, *[f"{base.accuracy:.2%}"] * len(arms)]]
    for rate in rates:
        reached = [means[arm].get(rate) for arm in arms]
        rows.append(
            [
                f"{rate:g}",
                *(
                    "-" if mean is None else f"{mean:.2%} ({100 * (mean - base.accuracy):+.2f})"
                    for mean in reached
                ),
            ]
        )
    rows.append(["chosen", *(f"{rate:g}" for rate in best_rates(results).values())])
    table = markdown_table(["learning rate", *arms], rows)
    trials = Counter((each.arm, each.learning_rate) for each in results if each.arm != BASE)
    seeds = counted(max(trials.values()), "seed")
    return f"{table}\n\nThe {base.metric.name} of {base.n:,} {base.split} questions, {seeds}.\n"


def best_rates(results: Sequence[RunResult]) -> dict[str, float]:
    """Return the best learning rate of each arm of a sweep: of equally good ones the lowest."""
    return {
        arm: max(reached, key=lambda rate: (reached[rate], -rate))
        for arm, reached in _means(results).items()
    }


def _means(results: Sequence[RunResult]) -> dict[str, dict[float, float]]:
    """Return the mean accuracy over seeds of each arm at each rate."""
    trained: dict[str, dict[float, list[float]]] = {}
    for each in results:
        if each.arm != BASE:
            trained.setdefault(each.arm, {}).setdefault(each.learning_rate, []).append(
                each.accuracy
            )
    return {
        arm: {rate: fmean(reached) for rate, reached in by_rate.items()}
        for arm, by_rate in trained.items()
    }


def start_worker() -> Work[Run]:
    """Import torch in the worker only: the parent does not need it."""
    from bas_opd.reproduce.worker import start

    return start()


def run_all(runs: Sequence[Run], *, jobs: int, logs: Path, progress: Progress) -> None:
    """Make every missing result; a run that fails does not stop the others.

    The longest start first: one that starts last would run alone at the end.
    """
    missing = [run for run in runs if not is_settled(run)]
    missing.sort(key=lambda run: run.rounds, reverse=True)
    if len(missing) < len(runs):
        progress.message(f"{len(runs) - len(missing)} of {len(runs)} results exist already.")
    jobs = max(1, min(jobs, len(missing)))
    for folder in {logs, *(run.result.parent for run in missing)}:
        disk.make_folder(folder, parents=True, exist_ok=True)
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
    found = read_result(run.result)
    if found.study != run.planned.study:
        raise RunDirectoryError(
            f"{run.result} is a result of another study, or of none. Choose another --out, or "
            "remove it yourself."
        )
    if found.identity != run.planned.identity:
        raise RunDirectoryError(
            f"{run.result} is a result with other settings, data or base model, and would be "
            "lost. Choose another --out, or remove it yourself."
        )
    return True
