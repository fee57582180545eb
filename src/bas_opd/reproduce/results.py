"""A run and its result: one small JSON file, validated whenever it is read. Needs no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bas_opd.config import Config, dump
from bas_opd.config.loading import flat
from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks.metric import Metric, primary_metric
from bas_opd.evaluate.benchmarks.summary import share
from bas_opd.files import write_text
from bas_opd.reproduce.arms import ARMS, ArmSpec
from bas_opd.run.record import QueryRecord, StepRecord
from bas_opd.validation import first_problem

PATHS = frozenset({"model.path", "data.path", "run.output"})
"""Settings that are paths; the hash of their content identifies a run instead."""


class Part(BaseModel):
    """A part of a result: strict, without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Count(Part):
    """How many of n answers were right."""

    n: int = Field(gt=0)
    correct: int = Field(ge=0)

    @model_validator(mode="after")
    def _at_most_all(self) -> Count:
        if self.correct > self.n:
            raise ValueError(f"{self.correct} of {self.n} cannot be right")
        return self

    @property
    def accuracy(self) -> float:
        return self.correct / self.n


class Cost(Part):
    """The ledger's totals that the table shows."""

    candidates: int
    candidate_tokens: int
    calls: int
    scored_tokens: int
    processed_tokens: int
    student_tokens: int | None = None
    """This and the next three are unknown in results of version 0.1."""
    prefilled_tokens: int | None = None
    sampled_tokens: int | None = None
    total_tokens: int | None = None
    rollouts: int | None = None
    """This and the next six are unknown in earlier results."""
    generated: int | None = None
    rewards: int | None = None
    deferred: int | None = None
    reference_rows: int | None = None
    dropped_groups: int | None = None
    updates: int | None = None
    prompts_asked: float | None = None
    """Share of a step's prompts that the teacher was asked about at least once, mean of steps."""
    overrun: int
    ranked_steps: int
    seconds: dict[str, float]
    """Phase -> seconds of the whole run."""


class Steps(Part):
    """One entry for each step of the run."""

    loss: list[float | None]
    calls: list[int]
    scored_tokens: list[int]
    responses: list[int] | None = None
    """Responses that were sampled, by student or teacher; this and the next are unknown in earlier
    results."""
    total_tokens: list[int] | None = None
    seconds: list[float]

    @model_validator(mode="after")
    def _of_one_length(self) -> Steps:
        columns = (self.loss, self.calls, self.scored_tokens, self.seconds)
        later = (self.responses, self.total_tokens)
        lengths = {len(column) for column in (*columns, *later) if column is not None}
        if len(lengths) != 1 or not self.loss:
            raise ValueError("its columns differ in their number of steps, or are empty")
        return self

    @classmethod
    def of(cls, steps: Sequence[StepRecord]) -> Steps:
        """Take the columns from the steps of a run, rounded."""
        queried = [step if isinstance(step, QueryRecord) else None for step in steps]
        return cls(
            loss=[None if step.loss is None else float(f"{step.loss:.5g}") for step in steps],
            calls=[step.calls if step else 0 for step in queried],
            scored_tokens=[step.scored_tokens if step else 0 for step in queried],
            responses=[len(step.response_tokens) for step in steps],
            total_tokens=[step.token_costs["total_tokens"] for step in steps],
            seconds=[round(sum(step.seconds.values()), 3) for step in steps],
        )


class Point(Part):
    """An evaluation during training, after so many steps."""

    step: int = Field(ge=0)
    n: int = Field(gt=0)
    accuracy: float = Field(ge=0, le=1)


class Planned(Part):
    """One run of one arm, before it is made."""

    schema_version: Literal[1] = 1
    study: str | None = None
    """Hash of the file of the study that it belongs to, if any."""
    arm: str
    preset: str | None = None
    """Preset and settings that make the arm; None in results of version 0.1, whose arms are those
    of `arms.py`."""
    settings: list[str] = Field(default_factory=list)
    seed: int | None
    """None for the base, which has no seed."""
    identity: str
    """Hash of every setting, the training data, the questions and the base model."""
    overrides: list[str]
    """Settings that the user, or the study, changed for all arms."""
    learning_rate: float
    train: str
    """Fingerprint of the training set."""
    train_n: int
    task: str
    """Name of the questions in a table."""
    split: Literal["val", "test"]
    questions: str
    """Fingerprint of the evaluation set."""
    base: str
    """Hash of the weights that the run started from."""

    @property
    def spec(self) -> ArmSpec:
        """How the arm is made."""
        if self.preset is None:
            return ARMS[self.arm]
        return ArmSpec(self.arm, self.preset, tuple(self.settings))


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

    @property
    def rounds(self) -> int:
        """Rounds of sampling a step, at most: what the time of a small model depends on."""
        return self.config.dapo.rounds if self.config.method.name == "dapo" else 1


class RunResult(Planned):
    """One run of one arm, evaluated on one set of questions; the base has no cost and steps."""

    device: str
    jobs: int
    """Runs that shared the device, which makes each slower."""
    n: int
    kinds: dict[str, Count]
    pairs: Count | None
    outcomes: str = Field(pattern="^[01]+$")
    """1 for right, 0 for wrong, in the order of the questions."""
    cost: Cost | None
    steps: Steps | None
    curve: list[Point] = Field(default_factory=list)
    """Evaluations during training, where a study asks for them."""

    @model_validator(mode="after")
    def _adds_up(self) -> RunResult:
        counts = self.kinds.values()
        if not (len(self.outcomes) == self.n == sum(count.n for count in counts)):
            raise ValueError("outcomes, kinds and n differ in the number of questions")
        if self.outcomes.count("1") != sum(count.correct for count in counts):
            raise ValueError("outcomes and kinds differ in the number of right answers")
        if self.cost and self.steps and sum(self.steps.calls) != self.cost.calls:
            raise ValueError("the calls of the steps do not add up to those of the run")
        return self

    @property
    def metric(self) -> Metric:
        """The primary metric of its questions."""
        return primary_metric(self.kinds)

    @property
    def accuracy(self) -> float:
        """Its primary accuracy."""
        return self.measured(self.metric)

    def measured(self, metric: Metric) -> float:
        """Return its accuracy by a metric."""
        counts = [share(kind, each.correct, each.n) for kind, each in self.kinds.items()]
        return metric.of_parts(counts).value or 0.0


LATER = (
    ("select.budget", "calls"),
    ("select.coverage", False),
    ("select.correctness", False),
    ("method.name", "bas-opd"),
    ("data.workers", None),
    ("model.kernels", "auto"),
    ("rollout.engine", "sampler"),
    ("rollout.engine_cache_gib", 4.0),
    ("rollout.logprob_tolerance", None),
    ("rollout.ahead", 0),
    ("rollout.overlap", False),
    ("rollout.correct", "auto"),
    ("rollout.correct_cap", 2.0),
    ("optim.decay_until", None),
    ("optim.offload", False),
    ("optim.moments", "float32"),
    ("teacher.path", None),
    ("teacher.server", None),
    ("teacher.model", ""),
    ("teacher.key_variable", ""),
    ("teacher.support", "auto"),
    ("teacher.view", "crop"),
    ("teacher.at_once", 8),
    ("teacher.retries", 8),
    ("teacher.timeout_seconds", 300.0),
    ("teacher.price_per_million_tokens", None),
    ("teacher.spend_limit", None),
    ("shard.timeout_minutes", 30.0),
    ("shard.always", False),
    ("shard.reshard", False),
    ("shard.replicas", 1),
    ("judge.extra", "{}"),
)
"""Settings that came after results were published, with the defaults at which they change none.
With these they are no part of an identity, so that earlier results keep theirs."""


def identity(config: Config, *, train: str, questions: str, base: str) -> str:
    """Return the hash of all that a result depends on, independent of paths."""
    settings = {
        key: value
        for key, value in flat(dump(config)).items()
        if key not in PATHS
        and (key, value) not in LATER
        and config.uses(key)
        and not key.startswith("eval.")  # which changes no result
    }
    whole = {"settings": settings, "train": train, "questions": questions, "base": base}
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def write_result(path: Path, result: RunResult) -> None:
    """Write one result atomically, a line for each of its parts."""
    parts = result.model_dump(mode="json").items()
    lines = [f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in parts]
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def read_result(path: Path) -> RunResult:
    """Read and validate one result."""
    try:
        return RunResult.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(f"The result {path} cannot be read ({error.strerror}).") from error
    except ValidationError as error:
        raise DataError(
            f"The result {path} is damaged: {first_problem(error)}. Remove the file and rerun "
            "`bas-opd reproduce policies`."
        ) from error


def read_results(folder: Path) -> list[RunResult]:
    """Read every result of a folder."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise DataError(
            f"There are no results (*.json) in {folder}. `bas-opd reproduce policies --out DIR` "
            "writes them to DIR/results."
        )
    return [read_result(path) for path in files]
