"""All runs of a table: several at a time, each resumed where it stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from bas_opd.config import Config
from bas_opd.errors import BasOpdError, ModelError, RunDirectoryError
from bas_opd.files import sha256
from bas_opd.reproduce.arms import BASE, arm_config
from bas_opd.reproduce.pool import Work, run_side_by_side
from bas_opd.reproduce.results import identity, read_result
from bas_opd.run.progress import Progress
from bas_opd.text import duration

PROMPTS_PER_BATCH = 256
"""Questions answered together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """A prepared set to evaluate on."""

    folder: Path
    split: Literal["val", "test"]
    fingerprint: str
    task: str
    """Name of the questions in a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What all runs of a table share."""

    base: Path
    train: Path
    train_fingerprint: str
    train_n: int
    questions: Questions
    device: str = "auto"
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of one arm, and the path of its result."""

    name: str
    arm: str
    seed: int | None
    config: Config
    identity: str
    overrides: tuple[str, ...]
    train: str
    train_n: int
    questions: Questions
    base: str
    result: Path
    jobs: int = 1

    @property
    def steps(self) -> int:
        return 0 if self.seed is None else self.config.run.steps or 0


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
    out: Path, results: Path, inputs: Inputs, *, arms: Sequence[str], seeds: int, label: str = ""
) -> list[Run]:
    """Return the runs of a table, seed by seed, so that a part of them is a table of fewer seeds.

    The base is evaluated once. `label` names runs of one arm and seed under other settings.
    """
    base = base_hash(inputs.base)
    return [
        _plan(out, results, inputs, base, arm=arm, seed=seed, label=label)
        for seed in range(seeds)
        for arm in arms
        if arm != BASE or seed == 0
    ]


def _plan(
    out: Path, results: Path, inputs: Inputs, base: str, *, arm: str, seed: int, label: str
) -> Run:
    is_base = arm == BASE
    name = BASE if is_base else f"{arm}-{seed}{label}"
    settings = [
        *inputs.overrides,
        f"model.path={inputs.base}",
        f"model.device={inputs.device}",
        f"data.path={inputs.train}",
        f"run.output={out / 'runs' / name}",
    ]
    config = arm_config(arm, seed, settings)
    return Run(
        name=name,
        arm=arm,
        seed=None if is_base else seed,
        config=config,
        identity=identity(
            config,
            train=inputs.train_fingerprint,
            questions=inputs.questions.fingerprint,
            base=base,
        ),
        overrides=inputs.overrides,
        train=inputs.train_fingerprint,
        train_n=inputs.train_n,
        questions=inputs.questions,
        base=base,
        result=results / f"{name}.json",
    )


def run_all(
    runs: Sequence[Run],
    *,
    jobs: int,
    logs: Path,
    progress: Progress,
    start: Callable[[], Work[Run]],
) -> None:
    """Make every missing result; a run that fails does not stop the others."""
    open_runs = [run for run in runs if not is_settled(run)]
    if len(open_runs) < len(runs):
        progress.message(f"{len(runs) - len(open_runs)} of {len(runs)} results exist already.")
    jobs = max(1, min(jobs, len(open_runs)))
    for folder in {logs, *(run.result.parent for run in open_runs)}:
        folder.mkdir(parents=True, exist_ok=True)
    steps = sum(run.steps for run in open_runs)
    tally = _Tally(progress=progress, total=len(open_runs), steps=steps)
    progress.start(steps)
    run_side_by_side(
        [replace(run, jobs=jobs) for run in open_runs],
        jobs=jobs,
        start=start,
        logs=logs,
        listener=tally,
    )
    if tally.failures:
        raise BasOpdError(
            f"{len(tally.failures)} of {len(open_runs)} runs failed: {', '.join(tally.failures)}. "
            "Their reasons are above; rerun the same command to retry them and keep the others."
        )


def is_settled(run: Run) -> bool:
    """Return whether a run has its result; refuse one that is damaged or of another run."""
    if not run.result.exists():
        return False
    before = read_result(run.result)
    if before.identity != run.identity:
        raise RunDirectoryError(
            f"{run.result} is a result with other settings, data or base model, and would be "
            "lost. Choose another --out, or remove it yourself."
        )
    return True


@dataclass(slots=True, kw_only=True)
class _Tally:
    """Counts finished steps and runs, and shows them with an estimate of the time left."""

    progress: Progress
    total: int
    steps: int
    taken: dict[str, int] = field(default_factory=dict)
    ended: int = 0
    failures: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def stepped(self, task: Run, steps: int) -> None:
        self.taken[task.name] = self.taken.get(task.name, 0) + steps
        self.progress.advance(steps)

    def done(self, task: Run, outcome: str) -> None:
        # A run that was trained before takes no steps, but counts as done.
        self.stepped(task, task.steps - self.taken.get(task.name, 0))
        self._ended(task, outcome)

    def failed(self, task: Run, reason: str) -> None:
        self.failures.append(task.name)
        self._ended(task, f"failed. {reason}")

    def _ended(self, task: Run, outcome: str) -> None:
        self.ended += 1
        line = f"{self.ended}/{self.total} {task.name}: {outcome}"
        done = sum(self.taken.values())
        if done and self.ended < self.total:
            pace = (time.monotonic() - self.started) / done
            line += f"  eta {duration(pace * (self.steps - done))}"
        self.progress.message(line)
