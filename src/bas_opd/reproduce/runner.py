"""All runs of a table: several at a time, each resumed where it stopped."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bas_opd.config import Config
from bas_opd.data.records import PreparedSet, read_manifest
from bas_opd.errors import BasOpdError, ModelError, RunDirectoryError
from bas_opd.files import sha256
from bas_opd.reproduce.arms import BASE, arm_config
from bas_opd.reproduce.pool import Work, run_side_by_side
from bas_opd.reproduce.results import Planned, identity, read_result
from bas_opd.run.progress import Progress
from bas_opd.text import duration

PROMPTS_PER_BATCH = 256
"""Questions answered together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What all runs of a table share."""

    out: Path
    base: Path
    train: PreparedSet
    questions: PreparedSet
    split: Literal["val", "test"]
    """The split that the questions are of."""
    device: str = "auto"
    overrides: tuple[str, ...] = ()

    def settings(self, name: str) -> list[str]:
        """Return the settings of a run that is stored under a name."""
        return [
            *self.overrides,
            f"model.path={self.base}",
            f"model.device={self.device}",
            f"data.path={self.train.folder}",
            f"run.output={self.out / 'runs' / name}",
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of one arm, and the path of its result."""

    planned: Planned
    config: Config
    questions: Path
    """The folder of the set to evaluate on."""
    result: Path
    jobs: int = 1

    @property
    def name(self) -> str:
        return self.result.stem

    @property
    def steps(self) -> int:
        return 0 if self.planned.seed is None else self.config.run.steps or 0


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
                overrides=list(inputs.overrides),
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
