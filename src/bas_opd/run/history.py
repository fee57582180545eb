"""A run as its records tell it: one reader for everything that looks at a run directory.

An outline checks every line and parses all but the steps, which are read one at a time: the
records of a long run need not fit into memory. Needs no torch.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError

from bas_opd.config.loading import recorded_config
from bas_opd.config.schema import Config
from bas_opd.errors import CheckpointError, DataError, explain_failure
from bas_opd.run.directory import RunDirectory
from bas_opd.run.ledger import Ledger
from bas_opd.run.manifest import STATE, published, read_json
from bas_opd.run.record import (
    EvaluationRecord,
    Finished,
    QueryRecord,
    Resumed,
    Started,
    StepRecord,
    parse_step,
    parse_step_line,
)
from bas_opd.run.record_file import IncompleteLineError, Line, claims_place, read_lines
from bas_opd.validation import first_problem


@dataclass(slots=True, kw_only=True)
class RunOutline:
    """The events of a run but its steps, and what is wrong with them."""

    directory: RunDirectory
    started: Started | None = None
    resumed: list[Resumed] = field(default_factory=list)
    step_count: int = 0
    evaluations: list[EvaluationRecord] = field(default_factory=list)
    finished: Finished | None = None
    problems: list[str] = field(default_factory=list)
    cut: str = ""
    """What is wrong with an incomplete last line: it is being written, or a kill cut it short."""
    end: int = 0
    """Bytes of the records that were read."""

    @property
    def is_cut(self) -> bool:
        """Whether the last line is incomplete."""
        return bool(self.cut)

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
            return recorded_config(self.opening().config)
        except ValidationError as error:
            raise DataError(
                f"This version does not know the settings in {self.directory.records} "
                f"({first_problem(error)}). Use the version of bas-opd that made the run."
            ) from error

    def read_steps(self, problem: Callable[[str], None]) -> Iterator[StepRecord]:
        """Yield the steps in order; what is wrong with one is passed to `problem`."""
        if not self.end:
            return
        for line in read_lines(self.directory.records):
            try:
                step = parse_step_line(line.content) if line.is_step else None
                if step is not None:
                    yield step
                elif (event := line.event()).get("event") == "step":
                    yield parse_step(event)
            except DataError as error:
                problem(str(error))
            if line.end >= self.end:
                return


@dataclass(slots=True, kw_only=True)
class RunHistory(RunOutline):
    """The events of a run with all its steps."""

    steps: list[StepRecord] = field(default_factory=list)

    @property
    def queries(self) -> tuple[QueryRecord, ...]:
        """The steps that queried a teacher under a budget."""
        return tuple(step for step in self.steps if isinstance(step, QueryRecord))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summed:
    """The steps of a run that a checkpoint has counted together."""

    steps: int = 0
    end: int = 0
    """Bytes of the records up to there."""
    ledger: Ledger = field(default_factory=Ledger)


def summed_steps(run: RunDirectory) -> Summed:
    """Return what the newest checkpoint that fits the records has counted, so far as one does.

    Whoever reads the records up to there checks every line of them.
    """
    for path in published(run.checkpoints):
        try:
            state = read_json(path / STATE)
            ledger = Ledger.carried_on(state["ledger"])
            if ledger is not None and claims_place(run.records, state):
                return Summed(steps=ledger.steps, end=state["records_bytes"], ledger=ledger)
        except (CheckpointError, OSError, KeyError, TypeError):
            continue  # Those before it count less, which is only slower.
    return Summed()


def read_outline(path: Path) -> RunOutline:
    """Read a run directory without its steps; raise if its records were changed."""
    outline = RunOutline(directory=RunDirectory(path=path))
    _collect(outline)
    return sound(outline)


def read_history(path: Path) -> RunHistory:
    """Read a run directory, finished or not; raise if its records are damaged or were changed."""
    history = RunHistory(directory=RunDirectory(path=path))
    _collect(history)
    sound(history)
    with nothing_collected():
        history.steps = list(history.read_steps(history.problems.append))
    return sound(history)


def collect_outline(path: Path) -> RunOutline:
    """Read as much of a run as can be read, and list what is wrong with the rest."""
    outline = RunOutline(directory=RunDirectory(path=path))
    _collect(outline)
    return outline


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Read many records without the garbage collector, which would visit all of them repeatedly."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


Read = TypeVar("Read", bound=RunOutline)


def sound(outline: Read) -> Read:
    """Raise unless the records can be relied on."""
    if outline.problems:
        raise DataError(
            f"{outline.directory.records} is not what a run writes: {outline.problems[0]} "
            f"`bas-opd verify {outline.directory.path}` lists everything that is wrong with it."
        )
    if outline.started is None:
        raise DataError(
            f"{outline.directory.records} has no complete line yet. Wait until the run has begun."
        )
    return outline


def _collect(outline: RunOutline) -> None:
    records = outline.directory.existing_records()
    last: Line | None = None
    try:
        for line in read_lines(records):
            _add(outline, {"event": "step"} if line.is_step else line.event())
            if outline.started is not None and not line.is_of(outline.started.run_id):
                outline.problems.append(f"{records}:{line.number} is of another run.")
            outline.end = line.end
            last = line if line.is_step else last
    except OSError as error:
        raise DataError(explain_failure(error)) from error
    except DataError as error:
        before = "before the first step" if last is None else f"after that of step {_number(last)}"
        problem = f"{error} No record {before} was read."
        if isinstance(error, IncompleteLineError):
            outline.cut = problem
        else:
            outline.problems.append(problem)


def _number(line: Line) -> object:
    with suppress(DataError):
        return line.event().get("step")
    return "?"


def _add(history: RunOutline, event: Mapping[str, Any]) -> None:
    kind = event.get("event")
    if kind == "started" and (history.started or history.resumed or history.step_count):
        history.problems.append("A started event follows others: two runs were put together.")
    if history.finished is not None:
        history.problems.append(f"A {kind} event follows the finished one.")
    try:
        if kind == "started":
            history.started = history.started or Started.model_validate(event)
        elif kind == "resumed":
            history.resumed.append(Resumed.model_validate(event))
        elif kind == "step":
            history.step_count += 1
        elif kind == "evaluation":
            _add_evaluation(history, EvaluationRecord.model_validate(event))
        elif kind == "finished":
            history.finished = Finished.model_validate(event)
    except ValidationError as error:
        history.problems.append(f"the {kind} event: {first_problem(error)}.")
    if kind != "started" and history.started is None and not history.problems:
        history.problems.append("The started event, which comes first, is missing.")
    if kind == "resumed" and event.get("step") != history.step_count:
        history.problems.append(
            f"step {event.get('step')}: the run was resumed there, but the records hold "
            f"{history.step_count} steps before that."
        )


def _add_evaluation(history: RunOutline, evaluation: EvaluationRecord) -> None:
    """Add an evaluation, which is of the step before it, once."""
    if evaluation.step != history.step_count:
        history.problems.append(
            f"An evaluation of step {evaluation.step} follows {history.step_count} steps."
        )
    if history.evaluations and history.evaluations[-1].step == evaluation.step:
        history.problems.append(f"Step {evaluation.step} was evaluated twice.")
    history.evaluations.append(evaluation)


def refuse_step(problem: str) -> NoReturn:
    """Raise what is wrong with a step, for those who need all of them."""
    raise DataError(f"A step on record cannot be read: {problem} Restore the records.")
