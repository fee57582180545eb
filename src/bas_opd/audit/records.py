"""The files of an audit, in the folder of its run: measurements, from which all numbers follow.

Needs no torch: diagnostics and figures can be made from the files alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bas_opd import disk
from bas_opd.errors import BasOpdError, DataError
from bas_opd.files import write_text
from bas_opd.validation import first_problem

FOLDER = "audit"
Source = Literal["training", "held-out"]
SOURCES: tuple[Source, ...] = ("training", "held-out")
Teacher = Literal["own", "student"]
"""The teacher of the run, or the paper's stand-in for it, the student itself."""
_ENDS: dict[Teacher, str] = {"own": "", "student": "-student"}


class Part(BaseModel):
    """A part of an audit: strict, without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Provenance(Part):
    """What was audited, and against which teacher."""

    schema_version: Literal[1] = 1
    config_hash: str
    policy: str
    query_ratio: str
    coverage: bool = False
    """Whether `select.coverage` was laid over the policy."""
    teacher: Teacher
    teacher_mode: str
    """How the run's teacher followed the student: ema, frozen or live."""
    source: Source
    dataset: str
    """Fingerprint of the set the batches come from."""
    seed: int
    """Of the rollouts."""
    device: str
    created: str
    """UTC, as in 2026-11-15T12:00:00Z."""


class Candidate(Part):
    """One rollout of the audit, fully scored."""

    batch: int = Field(ge=0)
    row: int = Field(ge=0)
    example: str
    kind: str
    tokens: int = Field(gt=0)
    predicted: float | None
    """By the frozen selector; none if the policy predicts nothing."""
    entropy: float | None
    utility: float
    text: int | None = None
    """Which text of its prompt it is, so that repeated ones have the same number; none in audits of
    version 0.1."""


class UtilityAudit(Provenance):
    """Every candidate of several batches with its utility, under one frozen checkpoint."""

    step: int
    """Of the checkpoint."""
    dropped: int = Field(ge=0)
    """Candidates whose utility was not finite."""
    candidates: list[Candidate] = Field(min_length=1)

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if len({(each.batch, each.row) for each in self.candidates}) < len(self.candidates):
            raise ValueError("a candidate is in it twice")
        return self


class Pair(Part):
    """The two mean gradients of one batch: of the selected rows, and of the others."""

    selected_norm: float = Field(gt=0)
    unselected_norm: float = Field(gt=0)
    cosine: float = Field(ge=-1, le=1)
    selected: int = Field(gt=0)
    unselected: int = Field(gt=0)


class CheckpointGeometry(Part):
    """The pairs of one checkpoint, and the pair of their means over the batches."""

    step: int
    pairs: list[Pair] = Field(min_length=1)
    mean: Pair


class GeometryAudit(Provenance):
    """Gradient geometry along a run."""

    checkpoints: list[CheckpointGeometry] = Field(min_length=1)


Audit = TypeVar("Audit", UtilityAudit, GeometryAudit)


def utility_file(run: Path, source: Source, teacher: Teacher = "own") -> Path:
    """Return the path of a run's utility audit; one by a stand-in has a path of its own."""
    return run / FOLDER / f"utility-{source}{_ENDS[teacher]}.json"


def geometry_file(run: Path, teacher: Teacher = "own") -> Path:
    """Return the path of a run's gradient audit."""
    return run / FOLDER / f"geometry{_ENDS[teacher]}.json"


def utility_audits(run: Path) -> tuple[UtilityAudit, ...]:
    """Read the utility audits of a run: by its own teacher, else by the stand-in."""
    audits = (
        read_audit(utility_file(run, source), UtilityAudit)
        or read_audit(utility_file(run, source, "student"), UtilityAudit)
        for source in SOURCES
    )
    return tuple(audit for audit in audits if audit is not None)


def geometry_audit(run: Path) -> GeometryAudit | None:
    """Read the gradient audit of a run, likewise."""
    own = read_audit(geometry_file(run), GeometryAudit)
    return own or read_audit(geometry_file(run, "student"), GeometryAudit)


def write_audit(path: Path, audit: Audit) -> Audit:
    """Write an audit atomically, with each measurement on a line of its own, and return it."""
    parts = audit.model_dump(mode="json").items()
    lines = [f"{json.dumps(name)}: {_json(value)}" for name, value in parts]
    try:
        disk.make_folder(path.parent, exist_ok=True)
        write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")
    except OSError as error:
        raise BasOpdError(
            f"{path} cannot be written: {error}. Fix that, then rerun the command."
        ) from error
    return audit


def _json(value: Any) -> str:
    if isinstance(value, list):
        return "[\n" + ",\n".join(json.dumps(each, separators=(",", ":")) for each in value) + "\n]"
    return json.dumps(value)


def read_audit(path: Path, kind: type[Audit]) -> Audit | None:
    """Read an audit; none if there is no such file."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise DataError(
            f"{path} is no audit that this version can read ({first_problem(error)}). Rerun "
            "`bas-opd audit RUN`."
        ) from error
