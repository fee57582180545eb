"""Trackers: a run's numbers sent to TensorBoard, Trackio or W&B besides its own records.

The records stay the source of truth. A tracker is imported only on request, and one that fails is
dropped: no run stops because a dashboard cannot be reached.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from bas_opd.config import Config, dump
from bas_opd.errors import ConfigError
from bas_opd.run.curves import CURVES
from bas_opd.run.progress import RunProgress
from bas_opd.run.record import EvaluationRecord, StepRecord

PROJECT = "bas-opd"


class Tracker(Protocol):
    """Receives the numbers of a run, step by step."""

    def log(self, values: Mapping[str, float], *, step: int) -> None: ...
    def finish(self) -> None: ...


class TensorBoard:
    """Writes event files to a folder of the run."""

    def __init__(self, run: Path, settings: Mapping[str, Any], *, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What was written after the checkpoint that a run resumes from is purged.
        self._writer = SummaryWriter(log_dir=str(run / "tensorboard"), purge_step=done + 1)

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, global_step=step)
        self._writer.flush()

    def finish(self) -> None:
        self._writer.close()


class Hosted:
    """A module that has wandb's `init`, `log` and `finish`."""

    def __init__(self, module: str, config: Mapping[str, Any], **which: Any) -> None:
        self._module = importlib.import_module(module)
        self._module.init(project=PROJECT, config=dict(config), resume="allow", **which)

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        self._module.log(dict(values), step=step)

    def finish(self) -> None:
        self._module.finish()


def _trackio(run: Path, settings: Mapping[str, Any], *, done: int) -> Tracker:
    return Hosted("trackio", settings, name=f"{run.name}-{_identity(run)[:6]}")


def _wandb(run: Path, settings: Mapping[str, Any], *, done: int) -> Tracker:
    own = {"console": "off"}  # Numbers and settings alone, not what the terminal shows.
    return Hosted("wandb", settings, name=run.name, id=_identity(run), dir=str(run), settings=own)


def _identity(run: Path) -> str:
    """Return an id from the run's path; a resumed run keeps its tracker id."""
    return hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:16]


TRACKERS: Mapping[str, Callable[..., Tracker]] = {
    "tensorboard": TensorBoard,
    "trackio": _trackio,
    "wandb": _wandb,
}


def check_trackers(names: Sequence[str]) -> tuple[str, ...]:
    """Return the named trackers, each once, or say which is unknown or not installed."""
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(
                f"There is no tracker named {name!r}. The trackers are {', '.join(TRACKERS)}."
            )
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"The tracker {name} is not installed. Install it with `pip install "
                f"{name}`, or leave out --track {name}; the records hold every number."
            )
    return tuple(dict.fromkeys(names))


class Tracked:
    """Passes the progress of a run on, and sends its numbers to trackers."""

    def __init__(self, progress: RunProgress, config: Config, names: Sequence[str]) -> None:
        self._progress, self._config, self._names = progress, config, names
        self._trackers: dict[str, Tracker] = {}

    def start(self, total: int, what: str = "steps", *, done: int = 0) -> None:
        self._progress.start(total, what, done=done)
        run, settings = Path(self._config.run.output or "runs/run"), dump(self._config)
        for name in self._names:
            self._attempt(name, lambda name=name: self._begin(name, run, settings, done))

    def advance(self, count: int = 1) -> None:
        self._progress.advance(count)

    def step(self, step: StepRecord) -> None:
        self._progress.step(step)
        values = tracked_values(step)
        for name, tracker in list(self._trackers.items()):
            # Counted from one, as people see them.
            self._attempt(name, lambda t=tracker: t.log(values, step=step.step + 1))

    def evaluated(self, evaluation: EvaluationRecord) -> None:
        self._progress.evaluated(evaluation)
        values = {
            f"evaluation/{name.replace(' ', '_')}": value
            for name, value in evaluation.accuracies.items()
        }
        for name, tracker in list(self._trackers.items()):
            self._attempt(name, lambda t=tracker: t.log(values, step=evaluation.step))

    def message(self, text: str) -> None:
        self._progress.message(text)

    def finish(self, totals: Mapping[str, Any]) -> None:
        for name, tracker in list(self._trackers.items()):
            self._attempt(name, tracker.finish)
        self._progress.finish(totals)

    def _begin(self, name: str, run: Path, settings: Mapping[str, Any], done: int) -> None:
        self._trackers[name] = TRACKERS[name](run, settings, done=done)

    def _attempt(self, name: str, what: Callable[[], None]) -> None:
        try:
            what()
        except Exception as error:
            self._trackers.pop(name, None)
            self.message(
                f"The tracker {name} failed ({type(error).__name__}: {error}) and is disabled. "
                "The run continues; its records hold every number."
            )


def tracked_values(step: StepRecord) -> dict[str, float]:
    """Return the numbers of a step that a curve can be drawn of; what is not known is left out."""
    values = {curve.key: value for curve in CURVES for value in curve.of([step])}
    values |= {f"seconds/{phase}": spent for phase, spent in step.seconds.items()}
    if step.waited_seconds is not None:
        values["waited_seconds"] = step.waited_seconds
    return {name: float(value) for name, value in values.items() if value is not None}
