"""The records of a run: one JSON object a line, appended and never changed.

This module owns their schema, their writer and their reader. It needs no torch: a run can be
checked and shown wherever its records are. A step has core fields, and those of its method: a
`QueryRecord` is the step of a method that queries a teacher under a budget, a `GenerationRecord` of
one that learns from what a teacher generated, and a `PolicyRecord` of one that is rewarded.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bas_opd import disk
from bas_opd.errors import DataError
from bas_opd.types import (
    FEATURES,
    Budget,
    BudgetKind,
    Candidates,
    Costs,
    Crop,
    Grade,
    Graded,
    PolicyReport,
    QueryReport,
    StepReport,
)
from bas_opd.validation import first_problem

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA_VERSION = 1
STUDENT_PASSES = 3
"""What a token of the student's update counts: one forward pass, and a backward pass of two."""

STEP = b'{"schema_version":1,"event":"step",'
"""How the line of a step begins."""
TAIL = b',"chain":"%s"}\n'
"""How a line ends; the chain has 64 digits."""
TAIL_BYTES = len(TAIL) - 2 + 64
BLOCK = 1 << 16


class IncompleteLineError(DataError):
    """The last line of the records is being written, or a kill cut it short."""


class Record(BaseModel):
    """A part of the records. Fields that this version does not know are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class DataSource(Record):
    """The prepared set that a run is trained on."""

    folder: str = ""
    fingerprint: str
    examples: int
    source: str = ""
    """What the set was prepared from."""
    pictures: str = ""
    """Hash of the pictures as they were on disk; runs of version 0.1 lack it."""


class Started(Record):
    """The first event: which run it is."""

    steps: int | None = None
    config: dict[str, Any]
    config_hash: str
    data: DataSource
    environment: dict[str, Any] = Field(default_factory=dict)
    device: str = ""
    precision: str = ""
    base: str = ""
    """Fingerprint of the weights it started from."""
    accepted_changes: dict[str, str] = Field(default_factory=dict)
    """Files that had changed, and were accepted with --accept-changes -> what had changed."""


class Resumed(Record):
    """A resumption after `step` steps; settings that change no result may differ from before."""

    step: int
    steps: int | None = None
    config: dict[str, Any] | None = None
    config_hash: str | None = None
    accepted_changes: dict[str, str] = Field(default_factory=dict)


class Finished(Record):
    """The last event: the ledger, and the hash of every file of the trained model."""

    steps: int
    totals: dict[str, Any]
    model: dict[str, str]


class EvaluationRecord(Record):
    """An evaluation of the model after `step` steps, which lies between two of them."""

    step: int
    metric: str
    """Name of the primary accuracy."""
    accuracies: dict[str, float]
    """Name -> accuracy between 0 and 1."""
    n: int
    questions: str
    """Hash of the questions: only evaluations on the same ones can be compared."""
    seconds: float

    @property
    def accuracy(self) -> float:
        """The primary accuracy."""
        return self.accuracies[self.metric]

    @property
    def words(self) -> str:
        """The accuracies in percent with their names, the primary one first."""
        names = (self.metric, *(name for name in self.accuracies if name != self.metric))
        return ", ".join(f"{100 * self.accuracies[name]:.1f} % ({name})" for name in names)

    def is_better(self, other: EvaluationRecord | None) -> bool:
        """Return whether it is above another by the primary accuracy, or on other questions."""
        return other is None or self.questions != other.questions or self.accuracy > other.accuracy


class ShownRow(Record):
    """A row whose text is on record."""

    row: int
    example: str
    question: str
    answer: str
    response: str
    score: float | None
    utility: float | None


class StepRecord(Record):
    """The core of a step, whatever the method."""

    step: int
    examples: list[str]
    per_prompt: int = Field(gt=0)
    prompt_tokens: list[int]
    response_tokens: list[int]
    student_tokens: int
    prefilled_tokens: int | None = None
    """Tokens of the student's prompts, each prefilled once. This and the next two are not on record
    in runs of version 0.1; `token_costs` has them of every run."""
    sampled_tokens: int | None = None
    """Response tokens of all rollouts."""
    total_tokens: int | None = None
    is_valid: bool
    seconds: dict[str, float]
    loss: float | None = None
    gradient_norm: float | None = None
    learning_rate: float | None = None
    shown: list[ShownRow] = Field(default_factory=list)
    rows: list[int] | None = None
    """Rows that the student learned from; a step with queries has them as `selected`."""

    @property
    def rollouts(self) -> int:
        """Responses that the student sampled."""
        return len(self.response_tokens)

    @property
    def updates_made(self) -> int:
        """Optimizer updates."""
        return int(self.is_valid)

    @property
    def batches(self) -> int:
        """Batches of prompts that were taken from the data."""
        return 1

    @property
    def teacher_tokens(self) -> int:
        """Tokens that were computed without a gradient; a method without a teacher has none."""
        return 0

    @property
    def token_costs(self) -> dict[str, int]:
        """Prefilled, sampled and total tokens, from the lengths of prompts and responses."""
        prefilled, sampled = sum(self.prompt_tokens), sum(self.response_tokens)
        total = total_tokens(
            prefilled=prefilled,
            sampled=sampled,
            teacher=self.teacher_tokens,
            student=self.student_tokens,
        )
        return {
            "prefilled_tokens": prefilled,
            "sampled_tokens": sampled,
            "total_tokens": total,
        }

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing to learn from."""
        return self.rows == []

    @property
    def is_skipped(self) -> bool:
        """Whether its loss or gradient was not finite."""
        return not self.is_empty and not self.is_valid


class QueryRecord(StepRecord):
    """A step that queried a teacher under a budget.

    Row numbers count rollouts prompt by prompt, so row // per_prompt is the place of its example.
    `features` and `scores` follow the order of `candidates`, `utility` that of `selected`.
    """

    candidates: list[int]
    candidate_tokens: int
    feature_names: list[str]
    features: list[list[float | None]]
    has_entropy: bool
    query_ratio: str
    budget: int
    budget_kind: BudgetKind = "calls"
    """What `budget`, `spent` and `full_cost` count; records of version 0.1 are in calls."""
    spent: int | None = None
    """What the selected rows cost."""
    full_cost: int | None = None
    """What all candidates would have cost."""
    costs: list[int] | None = None
    """What each candidate costs by itself, where the budget is in tokens."""
    openings: list[int] | None = None
    """What the first queried row of each prompt costs in addition, where prompts cost something."""
    texts: list[int] | None = None
    """Which text of its prompt each candidate is: repeated responses have the same number."""
    grades: list[Grade] | None = None
    """Whether each candidate is right, where selection used it."""
    selected: list[int]
    explored: list[int]
    scores: list[float | None]
    utility: list[float | None]
    scored: list[int]
    calls: int
    overrun: int
    scored_tokens: int
    processed_tokens: int
    prefilled_prompts: int
    learned: bool
    dropped_labels: int

    @model_validator(mode="after")
    def _columns_fit(self) -> QueryRecord:
        if len(self.response_tokens) != len(self.examples) * self.per_prompt:
            raise ValueError("response_tokens has not per_prompt rows of each of the examples")
        if len(self.prompt_tokens) != len(self.examples):
            raise ValueError("prompt_tokens and examples differ in length")
        rows = set(self.candidates)
        if len(rows) != len(self.candidates):
            raise ValueError("candidates names a row twice")
        if not rows <= set(range(len(self.response_tokens))):
            raise ValueError("candidates names a row that response_tokens does not have")
        if not len(self.candidates) == len(self.features) == len(self.scores):
            raise ValueError("candidates, features and scores differ in length")
        if any(len(values) != len(self.feature_names) for values in self.features):
            raise ValueError("features and feature_names differ in length")
        if len(self.selected) != len(self.utility):
            raise ValueError("selected and utility differ in length")
        for name in ("costs", "texts", "grades"):
            column = getattr(self, name)
            if column is not None and len(column) != len(self.candidates):
                raise ValueError(f"candidates and {name} differ in length")
        if min([0, *(self.costs or ()), *(self.openings or ())]) < 0:
            raise ValueError("costs are negative")
        if self.openings is not None and len(self.openings) != len(self.examples):
            raise ValueError("examples and openings differ in length")
        if (self.budget_kind == "calls") != (self.costs is None):
            raise ValueError("costs belong to a budget in tokens, and only to that")
        return self

    @property
    def teacher_tokens(self) -> int:
        """Tokens that the teacher computed, prompts counted."""
        return self.processed_tokens

    @property
    def prompt_of(self) -> dict[int, int]:
        """Candidate row -> the place of its example."""
        return {row: row // self.per_prompt for row in self.candidates}

    @property
    def text_of(self) -> dict[int, int] | None:
        """Candidate row -> the number of its text among those of its prompt, where on record."""
        return None if self.texts is None else dict(zip(self.candidates, self.texts, strict=True))

    @property
    def used(self) -> int:
        """What the teacher did, in the unit of the budget."""
        return int(getattr(self, self.budget_kind))

    def budget_of(self, limit: int) -> Budget:
        """Return a budget of the step's kind, with what its rows cost."""
        if self.costs is None:
            return Budget(limit=limit, kind=self.budget_kind)
        costs = Costs(
            rows=dict(zip(self.candidates, self.costs, strict=True)),
            prompts=self.prompt_of,
            openings=dict(enumerate(self.openings or ())),
        )
        return Budget(limit=limit, kind=self.budget_kind, costs=costs)

    @property
    def is_empty(self) -> bool:
        """Whether no row was selected, hence nothing learned."""
        return not self.selected

    @property
    def score_of(self) -> dict[int, float]:
        """Candidate row -> the score it was ranked by, where it has one."""
        pairs = zip(self.candidates, self.scores, strict=True)
        return {row: score for row, score in pairs if score is not None}

    def feature_of(self, name: str) -> dict[int, float]:
        """Candidate row -> one of its features, where that is a number."""
        column = self.feature_names.index(name)
        pairs = zip(self.candidates, self.features, strict=True)
        return {row: value for row, phi in pairs if (value := phi[column]) is not None}

    @property
    def labels(self) -> int:
        """Rows whose utility and features are all numbers, as the replay demands."""
        finite = {
            row for row, phi in zip(self.candidates, self.features, strict=True) if None not in phi
        }
        return sum(
            row in finite and utility is not None
            for row, utility in zip(self.selected, self.utility, strict=True)
        )

    def tokens_of(self, rows: Sequence[int]) -> int:
        """Return the response tokens of rows together."""
        return sum(self.response_tokens[row] for row in rows)

    @property
    def mean_utility(self) -> tuple[float | None, float | None]:
        """Mean utility of rows chosen by score and of explored ones; None if nothing was ranked."""
        if not self.score_of:
            return None, None
        explored = set(self.explored)
        groups: dict[bool, list[float]] = {False: [], True: []}
        for row, utility in zip(self.selected, self.utility, strict=True):
            if utility is not None:
                groups[row in explored].append(utility)
        by_score, by_chance = (fmean(group) if group else None for group in groups.values())
        return by_score, by_chance


class GradedRecord(StepRecord):
    """A step that graded responses by the answers of the data."""

    grades: list[Grade] | None = None
    """Of every row; None where responses are not graded."""
    judged: list[int] = Field(default_factory=list)
    """Rows that no rule could read and a judge decided."""

    @model_validator(mode="after")
    def _grades_fit(self) -> GradedRecord:
        if self.grades is not None and len(self.grades) != len(self.response_tokens):
            raise ValueError("grades and response_tokens differ in length")
        if not set(self.judged) <= set(range(len(self.grades or ()))):
            raise ValueError("judged names a row that grades does not have")
        if not {shown.row for shown in self.shown} <= set(range(len(self.response_tokens))):
            raise ValueError("shown names a row that response_tokens does not have")
        return self

    @property
    def deferred(self) -> int:
        """Rows that no rule could read: they earn nothing, unless a judge decided."""
        undecided = {row for row, grade in enumerate(self.grades or ()) if grade == "unread"}
        return len(undecided | set(self.judged))

    @property
    def right(self) -> int:
        """Rows that are right."""
        return (self.grades or []).count("right")


class GenerationRecord(GradedRecord):
    """A step that learned from responses of a teacher (SFT)."""

    generated: int
    """Responses that the teacher generated; they are `response_tokens`, from its own prompts."""

    @property
    def rollouts(self) -> int:
        """The student samples nothing."""
        return 0


class UpdateRecord(Record):
    """One optimizer update of several."""

    rows: list[int]
    loss: float | None
    gradient_norm: float | None
    is_valid: bool


class PolicyRecord(GradedRecord):
    """A step that was rewarded (GRPO, DAPO). `rewards` and `advantages` are of every row."""

    rounds: list[int]
    """Prompts that were sampled in each round."""
    rewards: list[float]
    advantages: list[float]
    kept: list[int]
    """Places of the examples that were learned from."""
    updates: list[UpdateRecord]
    reference_rows: int
    """Rows that the initial model scored."""
    reference_tokens: int
    rescored_tokens: int
    """Tokens of the pass that measured log-probs before several updates."""
    logprob_gap: float | None = None
    """Mean distance between the log-probs of learner and sampler."""

    @model_validator(mode="after")
    def _columns_fit(self) -> PolicyRecord:
        rows = len(self.examples) * self.per_prompt
        columns = (self.response_tokens, self.grades, self.rewards, self.advantages)
        if any(column is None or len(column) != rows for column in columns):
            raise ValueError("response_tokens, grades, rewards and advantages are not of all rows")
        if len(self.prompt_tokens) != len(self.examples):
            raise ValueError("prompt_tokens and examples differ in length")
        if not set(self.kept) <= set(range(len(self.examples))):
            raise ValueError("kept names an example that the step does not have")
        return self

    @property
    def updates_made(self) -> int:
        """Optimizer updates."""
        return sum(each.is_valid for each in self.updates)

    @property
    def batches(self) -> int:
        """One for each round."""
        return len(self.rounds)

    @property
    def dropped_groups(self) -> int:
        """Prompts that were sampled and not learned from."""
        return len(self.examples) - len(self.kept)

    @property
    def teacher_tokens(self) -> int:
        """Tokens that the reference, and the pass before several updates, computed."""
        return self.reference_tokens + self.rescored_tokens


def total_tokens(*, prefilled: int, sampled: int, teacher: int, student: int) -> int:
    """Return the cost of a step in tokens of one forward pass (docs/guarantees.md)."""
    return prefilled + sampled + teacher + STUDENT_PASSES * student


def parse_step(event: Mapping[str, Any]) -> StepRecord:
    """Read an event of the records as a step, or say which step lacks what."""
    kinds = {"candidates": QueryRecord, "advantages": PolicyRecord, "generated": GenerationRecord}
    kind = next((kind for name, kind in kinds.items() if name in event), StepRecord)
    try:
        return kind.model_validate(dict(event))
    except ValidationError as error:
        raise DataError(f"step {event.get('step', '?')}: {first_problem(error)}.") from None


def step_event(
    report: StepReport,
    *,
    decode: Callable[[Tensor], str],
    examples: int,
    data_folder: Path | None = None,
) -> dict[str, Any]:
    """Return the event of one step: enough to check it and to show its rows without the model."""
    rollouts, update = report.rollouts, report.update
    prompts, responses = [each.length for each in rollouts.prompts], rollouts.lengths.tolist()
    core = {
        "event": "step",
        "step": rollouts.step,
        "examples": [example.id for example in rollouts.examples],
        "per_prompt": rollouts.per_prompt,
        "prompt_tokens": prompts,
        "response_tokens": responses,
    }
    prefilled, sampled = sum(prompts), sum(responses)
    outcome = {
        "student_tokens": update.processed_tokens,
        "prefilled_tokens": prefilled,
        "sampled_tokens": sampled,
        "total_tokens": total_tokens(
            prefilled=prefilled,
            sampled=sampled,
            teacher=_teacher_tokens(report),
            student=update.processed_tokens,
        ),
        "loss": update.loss,
        "gradient_norm": update.gradient_norm,
        "learning_rate": update.learning_rate,
        "is_valid": update.is_valid,
    }
    shown = [_shown(report, row, decode, data_folder) for row in report.rows[:examples]]
    closing = {"seconds": report.seconds, "shown": shown}
    if report.queries is None:
        own = _policy(report.policy) if report.policy else {}
        if report.generation:
            own = {**_grades(report.generation.graded), "generated": len(responses)}
        return {**core, "rows": list(report.rows), **own, **outcome, **closing}
    asked, learned = _queries(report, report.queries)
    return {**core, **asked, **outcome, **learned, **closing}


def _teacher_tokens(report: StepReport) -> int:
    if report.queries:
        return report.queries.teacher.processed_tokens
    policy = report.policy
    return policy.reference_tokens + policy.rescored_tokens if policy else 0


def _grades(graded: Graded | None) -> dict[str, Any]:
    if graded is None:
        return {}
    return {"grades": list(graded.grades), "judged": list(graded.judged)}


def _policy(policy: PolicyReport) -> dict[str, Any]:
    return {
        **_grades(policy.graded),
        "rounds": list(policy.rounds),
        "rewards": list(policy.rewards),
        "advantages": list(policy.advantages),
        "kept": list(policy.kept),
        "updates": [
            {
                "rows": list(rows),
                "loss": update.loss,
                "gradient_norm": update.gradient_norm,
                "is_valid": update.is_valid,
            }
            for rows, update in policy.updates
        ],
        "reference_rows": policy.reference_rows,
        "reference_tokens": policy.reference_tokens,
        "rescored_tokens": policy.rescored_tokens,
        "logprob_gap": policy.logprob_gap,
    }


def _queries(report: StepReport, queries: QueryReport) -> tuple[dict[str, Any], dict[str, Any]]:
    candidates, selection, teacher = queries.candidates, queries.selection, queries.teacher
    rows = list(candidates.rows)
    budget = Budget.of(selection.budget)
    # What the teacher did, not what it was allowed to do.
    calls = len(teacher.rows)
    done = {
        "calls": calls,
        "scored_tokens": teacher.scored_tokens,
        "processed_tokens": teacher.processed_tokens,
    }
    asked = {
        "candidates": rows,
        "candidate_tokens": int(report.rollouts.lengths[rows].sum()),
        "feature_names": list(FEATURES),
        "features": candidates.values.tolist(),
        "has_entropy": candidates.has_entropy,
        "query_ratio": str(queries.query_ratio),
        "budget": budget.limit,
        "budget_kind": budget.kind,
        "spent": selection.spent,
        "full_cost": budget.spent(rows),
        **_prices(budget, rows, prompts=len(report.rollouts.examples)),
        "texts": _text_numbers(candidates),
        **({} if candidates.grades is None else {"grades": list(candidates.grades)}),
        "selected": list(selection.rows),
        "explored": sorted(selection.explored),
        "scores": [selection.scores.get(row) for row in rows],
        "utility": [report.update.observed.get(row) for row in selection.rows],
        "scored": list(teacher.rows),
        **done,
        "overrun": max(0, done[budget.kind] - budget.limit),
        "prefilled_prompts": teacher.prefilled_prompts,
    }
    return asked, {"learned": queries.learned, "dropped_labels": report.update.dropped}


def _prices(budget: Budget, rows: Sequence[int], *, prompts: int) -> dict[str, Any]:
    """Return what rows and prompts cost in tokens; nothing for a budget in calls."""
    if budget.costs is None:
        return {}
    openings = budget.costs.openings
    return {
        "costs": [budget.costs.rows[row] for row in rows],
        "openings": [openings.get(p, 0) for p in range(prompts)] if openings else None,
    }


def _text_numbers(candidates: Candidates) -> list[int] | None:
    """Number the texts of each prompt in the order in which they first appear."""
    if candidates.texts is None or candidates.prompts is None:
        return None
    known: dict[int, dict[Any, int]] = {}
    return [
        (texts := known.setdefault(prompt, {})).setdefault(text, len(texts))
        for prompt, text in zip(candidates.prompts, candidates.texts, strict=True)
    ]


def _shown(
    report: StepReport, row: int, decode: Callable[[Tensor], str], data_folder: Path | None
) -> dict[str, Any]:
    """Return one row as a person wants to see it."""
    rollouts, queries = report.rollouts, report.queries
    example = rollouts.example_of(row)
    return {
        "row": row,
        "example": example.id,
        "image": _reference(example.image, data_folder),
        "crop": None if example.crop is None else _crop(example.crop, data_folder),
        "question": example.question,
        "answer": example.answer,
        "response": decode(rollouts.tokens[row, : int(rollouts.lengths[row])]),
        "score": queries.selection.scores.get(row) if queries else None,
        "utility": report.update.observed.get(row) if queries else None,
    }


def _crop(crop: Crop, data_folder: Path | None) -> dict[str, Any]:
    return {
        "area": crop.area,
        "box": None if crop.box is None else list(crop.box),
        "image": None if crop.image is None else _reference(crop.image, data_folder),
    }


def _reference(path: Path, data_folder: Path | None) -> str:
    """Return a path that stays valid when the dataset moves, if the picture is inside it."""
    if data_folder is not None and path.is_relative_to(data_folder):
        path = path.relative_to(data_folder)
    return path.as_posix()


class RecordWriter:
    """Appends events to a JSONL file; one that was written survives a crash of the machine.

    Each line ends with the hash of itself and of the line before, so that no line can change, go or
    come without a trace.
    """

    def __init__(
        self,
        path: Path,
        *,
        keep_bytes: int | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Append after the first `keep_bytes`, dropping the rest, or after the whole file.

        `check` raises if the file is no longer the run's; it is called before each event.
        """
        check()
        self._check = check
        self._file = disk.OpenFile(path, "r+b" if path.exists() else "x+b")
        if keep_bytes is not None:
            self._file.truncate(keep_bytes)
        self._chain = _last_chain(self._file, path)
        self._file.seek(0, os.SEEK_END)

    @property
    def place(self) -> dict[str, Any]:
        """Size and chain of the records so far, as a checkpoint saves them."""
        return {"records_bytes": self._file.tell(), "records_chain": self._chain}

    def write(self, event: Mapping[str, Any]) -> None:
        """Append one event and wait until it is on disk. NaN and infinities become null."""
        self._check()
        record = _finite({"schema_version": SCHEMA_VERSION, **event})
        self._chain = chained(self._chain, record)
        self._file.write(_line({**record, "chain": self._chain}) + b"\n")
        self._file.sync()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def holds_place(path: Path, place: Mapping[str, Any]) -> bool:
    """Return whether a file still holds, line by line, the records up to a saved place."""
    end, chain = 0, ""
    try:
        for line in read_lines(path):
            if line.end > place["records_bytes"]:
                break
            end, chain = line.end, line.chain
    except (FileNotFoundError, DataError):
        pass  # What comes after the place may be a line cut short.
    return (end, chain) == (place["records_bytes"], place["records_chain"])


def chained(previous: str, record: Mapping[str, Any]) -> str:
    """Return the hash that ties a record, without its own `chain`, to the one before it."""
    return hashlib.sha256(previous.encode() + _line(record)).hexdigest()


def _line(record: Mapping[str, Any]) -> bytes:
    # ASCII keeps every text on one line and lets a broken character through unharmed.
    return json.dumps(record, allow_nan=False, separators=(",", ":")).encode("ascii")


def _last_chain(file: disk.OpenFile, path: Path) -> str:
    line = _line_before(file, file.seek(0, os.SEEK_END))
    if not line:
        return ""
    if not line.endswith(b"\n"):
        raise DataError(f"{path} ends in a line that was cut short. Remove that line.")
    return str(_parse(line, f"The last line of {path}")["chain"])


def _line_before(file: disk.OpenFile | BinaryIO, end: int) -> bytes:
    """Return the line that ends at a place of a file."""
    tail = b""
    while len(tail) < end and b"\n" not in tail[:-1]:
        start = max(0, end - 2 * len(tail) - BLOCK)
        file.seek(start)
        tail = file.read(end - start)
    return tail[tail.rfind(b"\n", 0, -1) + 1 :]


def claims_place(path: Path, place: Mapping[str, Any]) -> bool:
    """Return whether the line that ends at a saved place says that it does; no other is read."""
    with path.open("rb") as file:
        return _line_before(file, place["records_bytes"]).endswith(
            TAIL % str(place["records_chain"]).encode()
        )


class Line(NamedTuple):
    """A line of the records that follows from the one before it."""

    content: bytes
    path: Path
    number: int
    chain: str
    """That the next line follows from."""
    end: int
    """Bytes of the file up to its end."""

    @property
    def is_step(self) -> bool:
        """Whether it is known to be a step without parsing it."""
        return self.content.startswith(STEP)

    def event(self) -> dict[str, Any]:
        """Return what it holds."""
        event = _parse(self.content, f"{self.path}:{self.number}")
        event.pop("chain", None)
        return event


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Every event of a file in order; a damaged or changed line is named, never skipped."""
    return (line.event() for line in read_lines(path))


def read_lines(path: Path) -> Iterator[Line]:
    """Yield every line of a file in order, none of them parsed without need."""
    chain, end = "", 0
    with path.open("rb") as file:
        for number, content in enumerate(file, start=1):
            end += len(content)
            try:
                chain = _chain_of(content, path, number, after=chain)
            except DataError as error:
                if content.endswith(b"\n"):
                    raise
                raise IncompleteLineError(str(error)) from None
            yield Line(content, path, number, chain, end)


def _chain_of(line: bytes, path: Path, number: int, *, after: str) -> str:
    """Return the chain of a line, or raise if it does not follow from the line before."""
    # Its bytes are those that were hashed when it was written: most lines need no parsing.
    digest = hashlib.sha256(after.encode())
    digest.update(memoryview(line)[:-TAIL_BYTES])
    digest.update(b"}")
    chain = digest.hexdigest()
    if line.endswith(TAIL % chain.encode()):
        return chain
    where = f"{path}:{number}"
    event = _parse(line, where)
    claimed, chain = event.pop("chain", None), chained(after, event)
    if claimed != chain:
        raise DataError(
            f"{where} does not follow from the line before it: one of the two was changed, "
            "removed or added after it was written."
        )
    return chain


def _parse(line: bytes, where: str) -> dict[str, Any]:
    if line.startswith(codecs.BOM_UTF8) or line.endswith(b"\r\n"):
        raise DataError(
            f"{where} was rewritten by another program, with a byte order mark or other line ends. "
            "Restore the file."
        )
    try:
        event = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where} is damaged: {error}. A line cut short by a crash can be removed; "
            "the lines before it are intact."
        ) from None
    version = event.get("schema_version") if isinstance(event, dict) else None
    if type(version) is not int:
        raise DataError(f"{where} is no record of a run: it has no schema_version.")
    if version > SCHEMA_VERSION:
        raise DataError(
            f"{where} has schema version {version}, but this version of bas-opd reads up to "
            f"{SCHEMA_VERSION}. Install a newer bas-opd."
        )
    return event


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(value: Any) -> Any:
    """The same value with null in place of every number that JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


class RecordFollower:
    """Reads complete lines as they are written, and detects a file that was truncated."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reset()

    def read(self) -> Iterator[Line | None]:
        """Yield the lines that were added; one that is still being written waits.

        None comes before the first line of the file, also when it is read again: a resumed run
        truncates its records.
        """
        if not self._path.exists():
            self._reset()
            yield None
            return
        if self._place:
            try:
                yield from self._added()
                return
            except DataError:  # What was read before is no longer in the file.
                self._reset()
        yield None
        yield from self._added()

    def _added(self) -> Iterator[Line]:
        with self._path.open("rb") as file:
            file.seek(self._place - len(self._last))
            if file.read(len(self._last)) != self._last:
                raise DataError(f"{self._path} was truncated.")
            while (content := file.readline()).endswith(b"\n"):
                number = self._lines + 1
                self._chain = _chain_of(content, self._path, number, after=self._chain)
                self._place += len(content)
                self._lines, self._last = number, content
                yield Line(content, self._path, number, self._chain, self._place)

    def _reset(self) -> None:
        self._place, self._lines, self._chain, self._last = 0, 0, "", b""
