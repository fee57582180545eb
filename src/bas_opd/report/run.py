"""A run as a reader holds it: everything its directory says, without torch and without its model.

The records are the truth. A line that is still being written is left out; one that was damaged or
changed is an error, for a page made around it would say more than is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bas_opd.audit.records import GeometryAudit, UtilityAudit, geometry_audit, utility_audits
from bas_opd.config.schema import Config
from bas_opd.errors import DataError
from bas_opd.evaluate.results import RunEvaluation, read_evaluation
from bas_opd.run.following import RecordFollower
from bas_opd.run.step_record import StepRecord, parse_step, totals

RECORDS = "records.jsonl"


class _Border(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class DataSource(_Border):
    """The prepared set that a run was trained on."""

    folder: str
    fingerprint: str
    examples: int


class Started(_Border):
    """The first event of a run: which run it is."""

    event: Literal["started"]
    config: dict[str, Any]
    config_hash: str
    data: DataSource
    environment: dict[str, Any]
    device: str
    precision: str
    base: str
    """Fingerprint of the weights it started from."""


class _Resumed(_Border):
    step: int
    steps: int


class _Finished(_Border):
    model: dict[str, str] = Field(default_factory=dict)


class ShownRow(_Border):
    """A selected row whose text is on record."""

    row: int
    example: str
    question: str
    answer: str
    response: str
    score: float | None
    utility: float | None


class _StepTexts(_Border):
    """What a step event holds beyond what is checked."""

    loss: float | None
    shown: list[ShownRow] = Field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run directory, read."""

    path: Path
    config: Config
    started: Started
    planned_steps: int
    steps: tuple[StepRecord, ...]
    losses: tuple[float | None, ...]
    shown: tuple[tuple[StepRecord, ShownRow], ...]
    """Rows with their texts, each with its step."""
    totals: Mapping[str, Any]
    resumed: tuple[int, ...]
    """Steps after which the run was taken up again."""
    is_finished: bool
    model: Mapping[str, str]
    """File -> hash of the trained model; empty until there is one."""
    evaluation: RunEvaluation | None
    utility_audits: tuple[UtilityAudit, ...]
    geometry: GeometryAudit | None

    @property
    def name(self) -> str:
        """What the run is called where several stand side by side."""
        return self.path.resolve().name

    @property
    def policy(self) -> str:
        """How rows were selected, in the paper's words: full, learned-25, random-10."""
        select = self.config.select
        if select.policy == "full":
            return "full"
        return f"{select.policy}-{(100 * select.query_ratio).normalize():f}"

    @property
    def asks_everything(self) -> bool:
        """Whether every candidate is asked about, so that no row is left to compare with."""
        return self.config.select.query_ratio == 1

    @property
    def own_evaluation(self) -> RunEvaluation | None:
        """The evaluation, unless it is known to be of other weights than this run's model."""
        found = self.evaluation
        return None if found is None or found.is_of_other_weights(self.model) else found

    @property
    def seconds(self) -> float:
        """The time of all phases together."""
        return sum(self.totals["seconds"].values())


def read_run(path: Path) -> Run:
    """Read a run directory, finished or not, or say why it cannot be read."""
    events = _events(path)
    started = _parsed(Started, events[0], path)
    steps, losses, shown, resumed = [], [], [], []
    planned, is_finished = events[0].get("steps"), False
    model: dict[str, str] = {}
    for event in events:
        kind = event.get("event")
        if kind == "step":
            step, texts = _step(event, path)
            steps.append(step)
            losses.append(texts.loss)
            shown += [(step, each) for each in texts.shown]
        elif kind == "resumed":
            again = _parsed(_Resumed, event, path)
            resumed.append(again.step)
            planned = again.steps
        elif kind == "finished":
            is_finished = True
            model = _parsed(_Finished, event, path).model
    return Run(
        path=path,
        config=_config(started, path),
        started=started,
        planned_steps=planned if isinstance(planned, int) else len(steps),
        steps=tuple(steps),
        losses=tuple(losses),
        shown=tuple(shown),
        totals=totals(steps),
        resumed=tuple(resumed),
        is_finished=is_finished,
        model=model,
        evaluation=read_evaluation(path / "eval"),
        utility_audits=utility_audits(path),
        geometry=geometry_audit(path),
    )


def _events(path: Path) -> tuple[dict[str, Any], ...]:
    records = path / RECORDS
    if not records.is_file():
        raise DataError(
            f"There is no run in {path}: it has no {RECORDS}. Give the directory of a run, as "
            "`bas-opd train` writes it."
        )
    try:
        events = RecordFollower(records).read().events
    except OSError as error:
        raise DataError(f"{records} cannot be read: {error.strerror}.") from error
    if not events:
        raise DataError(f"{records} holds no whole line yet. Wait until the run has begun.")
    return events


def _step(event: Mapping[str, Any], path: Path) -> tuple[StepRecord, _StepTexts]:
    try:
        step = parse_step(event)
    except DataError as error:
        raise DataError(_damaged(path, str(error))) from error
    return step, _parsed(_StepTexts, event, path)


Part = TypeVar("Part", bound=_Border)


def _parsed(kind: type[Part], event: Mapping[str, Any], path: Path) -> Part:
    try:
        return kind.model_validate(dict(event))
    except ValidationError as error:
        detail = error.errors()[0]
        place = ".".join(map(str, detail["loc"]))
        which = f"the {event.get('event')} event"
        raise DataError(_damaged(path, f"{which}: {place}: {detail['msg']}.")) from error


def _config(started: Started, path: Path) -> Config:
    try:
        return Config.model_validate(started.config)
    except ValidationError as error:
        detail = error.errors()[0]
        place = ".".join(map(str, detail["loc"]))
        raise DataError(
            f"The settings in {path / RECORDS} are none that this version knows ({place}: "
            f"{detail['msg']}). Use the version of bas-opd that made the run."
        ) from error


def _damaged(path: Path, problem: str) -> str:
    return (
        f"{path / RECORDS} is not what a run writes: {problem} `bas-opd verify {path}` lists "
        "everything that is wrong with it."
    )
