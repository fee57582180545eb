"""A run as its records tell it: one reader for everything that looks at a run directory.

Needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bas_opd.config.schema import Config
from bas_opd.errors import DataError, explain_failure
from bas_opd.run.directory import RunDirectory
from bas_opd.run.record import (
    EvaluationRecord,
    Finished,
    IncompleteLineError,
    QueryRecord,
    Resumed,
    Started,
    StepRecord,
    parse_step,
    read_records,
)
from bas_opd.validation import first_problem


@dataclass(slots=True, kw_only=True)
class RunHistory:
    """The events of a run by kind, and what is wrong with them."""

    directory: RunDirectory
    started: Started | None = None
    resumed: list[Resumed] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    evaluations: list[EvaluationRecord] = field(default_factory=list)
    finished: Finished | None = None
    problems: list[str] = field(default_factory=list)
    cut: str = ""
    """What is wrong with an incomplete last line: it is being written, or a kill cut it short."""

    @property
    def is_cut(self) -> bool:
        """Whether the last line is incomplete."""
        return bool(self.cut)

    @property
    def queries(self) -> tuple[QueryRecord, ...]:
        """The steps that queried a teacher under a budget."""
        return tuple(step for step in self.steps if isinstance(step, QueryRecord))

    @property
    def planned(self) -> int | None:
        """Steps that the run was last asked to take."""
        openings = [each for each in (self.started, *self.resumed) if each is not None]
        plans = [each.steps for each in openings if each.steps is not None]
        return plans[-1] if plans else None

    def opening(self) -> Started:
        """Return the first event."""
        if self.started is None:
            raise DataError(
                f"{self.directory.records} does not begin with the start of a run. Wait until the "
                "run has begun, or restore the file."
            )
        return self.started

    def config(self) -> Config:
        """Return the settings that the run was started with."""
        try:
            return Config.model_validate(self.opening().config)
        except ValidationError as error:
            raise DataError(
                f"This version does not know the settings in {self.directory.records} "
                f"({first_problem(error)}). Use the version of bas-opd that made the run."
            ) from error


def read_history(path: Path) -> RunHistory:
    """Read a run directory, finished or not; raise if its records are damaged or were changed."""
    history = collect_history(path)
    if history.problems:
        raise DataError(
            f"{history.directory.records} is not what a run writes: {history.problems[0]} "
            f"`bas-opd verify {path}` lists everything that is wrong with it."
        )
    if history.started is None:
        raise DataError(
            f"{history.directory.records} has no complete line yet. Wait until the run has begun."
        )
    return history


def collect_history(path: Path) -> RunHistory:
    """Read as much of a run as can be read, and list what is wrong with the rest."""
    history = RunHistory(directory=RunDirectory(path=path))
    records = history.directory.existing_records()
    try:
        for event in read_records(records):
            _add(history, event)
    except OSError as error:
        raise DataError(explain_failure(error)) from error
    except DataError as error:
        last = history.steps[-1].step if history.steps else None
        before = "before the first step" if last is None else f"after that of step {last}"
        problem = f"{error} No record {before} was read."
        if isinstance(error, IncompleteLineError):
            history.cut = problem
        else:
            history.problems.append(problem)
    return history


def _add(history: RunHistory, event: Mapping[str, Any]) -> None:
    kind = event.get("event")
    if kind == "started" and (history.started or history.resumed or history.steps):
        history.problems.append("A started event follows others: two runs were put together.")
    if history.finished is not None:
        history.problems.append(f"A {kind} event follows the finished one.")
    try:
        if kind == "started":
            history.started = history.started or Started.model_validate(event)
        elif kind == "resumed":
            history.resumed.append(Resumed.model_validate(event))
        elif kind == "step":
            history.steps.append(parse_step(event))
        elif kind == "evaluation":
            _add_evaluation(history, EvaluationRecord.model_validate(event))
        elif kind == "finished":
            history.finished = Finished.model_validate(event)
    except DataError as error:
        history.problems.append(str(error))
    except ValidationError as error:
        history.problems.append(f"the {kind} event: {first_problem(error)}.")
    if kind != "started" and history.started is None and not history.problems:
        history.problems.append("The started event, which comes first, is missing.")
    if kind == "resumed" and event.get("step") != len(history.steps):
        history.problems.append(
            f"step {event.get('step')}: the run was resumed there, but the records hold "
            f"{len(history.steps)} steps before that."
        )


def _add_evaluation(history: RunHistory, evaluation: EvaluationRecord) -> None:
    """Add an evaluation, which is of the step before it, once."""
    if evaluation.step != len(history.steps):
        history.problems.append(
            f"An evaluation of step {evaluation.step} follows {len(history.steps)} steps."
        )
    if history.evaluations and history.evaluations[-1].step == evaluation.step:
        history.problems.append(f"Step {evaluation.step} was evaluated twice.")
    history.evaluations.append(evaluation)
