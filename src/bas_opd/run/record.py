"""What the records of a run hold; `events` makes those of steps, `record_file` keeps them on disk.

Needs no torch: a run can be checked and shown wherever its records are. A step has core fields, and
those of its method: a `QueryRecord` is the step of a method that queries a teacher under a budget,
a `GenerationRecord` of one that learns from what a teacher generated, and a `PolicyRecord` of one
that is rewarded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bas_opd.errors import DataError
from bas_opd.types import Budget, BudgetKind, Costs, Grade, TeacherSupport
from bas_opd.validation import first_problem

STUDENT_PASSES = 3
"""What a token of the student's update counts: one forward pass, and a backward pass of two."""


class Record(BaseModel):
    """A part of the records. Fields that this version does not know are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    def slim(self, **changes: Any) -> Self:
        """Return it without the names of the fields that were set, which take half its memory."""
        copy = self.model_copy(update=changes)
        object.__setattr__(copy, "__pydantic_fields_set__", _NO_NAMES)
        return copy


_NO_NAMES: set[str] = set()


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
    run_id: str = ""
    """Which every record has; runs of version 0.1 have none."""
    accepted_changes: dict[str, str] = Field(default_factory=dict)
    """Files that had changed, and were accepted with --accept-changes -> what had changed."""
    teacher_files: dict[str, str] = Field(default_factory=dict)
    """File -> SHA-256 of the teacher, where it is another model."""
    has_journal: bool = False
    """Whether teacher calls are counted in calls.jsonl too, as since version 0.2."""


class Resumed(Record):
    """A resumption after `step` steps; settings that change no result may differ from before."""

    step: int
    steps: int | None = None
    config: dict[str, Any] | None = None
    config_hash: str | None = None
    environment: dict[str, Any] | None = None
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


class EngineRecord(Record):
    """How far another engine's log-probs were from the trainer's on the rows that it rescored."""

    version: int
    """Of the weights: the step that they were loaded for."""
    rescored_rows: list[int]
    rescored_tokens: int
    logprob_gap: float


class ImportanceRecord(Record):
    """How far the trainer's log-probs were from those under which the learned tokens were drawn."""

    tokens: int
    mean_difference: float | None
    max_difference: float | None
    truncated: int
    """Tokens whose importance weight was above the cap."""

    @property
    def truncated_share(self) -> float:
        """Share of the tokens whose weight was above the cap."""
        return self.truncated / max(1, self.tokens)


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
    waited_seconds: float | None = None
    """Of these, what passed while pictures and prompts were not ready; not in older runs."""
    loss: float | None = None
    gradient_norm: float | None = None
    learning_rate: float | None = None
    shown: list[ShownRow] = Field(default_factory=list)
    rows: list[int] | None = None
    """Rows that the student learned from; a step with queries has them as `selected`."""
    engine: EngineRecord | None = None
    """Where another engine than the trainer's own sampler drew the rollouts."""
    sampled_at: int | None = None
    """Steps that were taken before the weights that drew the rollouts; None: all before it."""
    importance: ImportanceRecord | None = None
    """Where tokens had importance weights."""
    student_tokens_of_ranks: list[int] | None = None
    """Of `student_tokens`, what each of several processes computed."""
    idle_passes: int | None = None
    """Micro-batches that processes sat out while others computed one, together."""

    def slim(self, **changes: Any) -> Self:
        """Return what pages show of it: they keep every step of a run."""
        return super().slim(shown=[row.slim() for row in self.shown], **changes)

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
    dropped: list[int] = Field(default_factory=list)
    """Selected rows that a served teacher did not answer."""
    calls: int
    overrun: int
    scored_tokens: int
    processed_tokens: int
    prefilled_prompts: int
    support: TeacherSupport | None = None
    """At whose likeliest tokens a served teacher was compared; None: its whole distribution, or
    nothing was asked."""
    rescored_tokens: int = 0
    """Tokens of the student's pass that found its likeliest tokens for the teacher."""
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

    def slim(self, **changes: Any) -> Self:
        """Leave out the features, which no page shows."""
        return super().slim(feature_names=[], features=[], **changes)

    @property
    def teacher_tokens(self) -> int:
        """Tokens that the teacher computed, and the student before it, prompts counted."""
        return self.processed_tokens + self.rescored_tokens

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
        """Whether no row was selected and scored, hence nothing learned."""
        return set(self.selected) <= set(self.dropped)

    @property
    def score_of(self) -> dict[int, float]:
        """Candidate row -> the score it was ranked by, where it has one."""
        pairs = zip(self.candidates, self.scores, strict=True)
        return {row: score for row, score in pairs if score is not None}

    @property
    def is_ranked(self) -> bool:
        """Whether candidates were ranked by scores."""
        return any(score is not None for score in self.scores)

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
        if not self.is_ranked:
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
    student_prompt_tokens: list[int] | None = None
    """Tokens of each example's prompt as the student sees it; not in older runs."""

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
    kl: float | None = None
    """Mean of k3 against the initial model over the learned tokens, where that is a penalty."""
    clip_share: float | None = Field(default=None, ge=0, le=1)
    """Share of the learned tokens whose gradient was clipped away, with several updates a step."""
    entropy: float | None = None
    """Mean entropy of the sampled tokens, in nats."""

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


_KINDS: dict[str, type[StepRecord]] = {
    "candidates": QueryRecord,
    "advantages": PolicyRecord,
    "generated": GenerationRecord,
}
"""Field -> the kind of step that has it."""
_FIELDS = {b'"%s":' % name.encode(): kind for name, kind in _KINDS.items()}
"""The same as it is written; a text that a line quotes has escaped quotes."""


def parse_step_line(line: bytes) -> StepRecord | None:
    """Read the line of a step twice as fast as by way of an event; None if it cannot be read."""
    if b"NaN" in line or b"Infinity" in line:  # Perhaps as numbers, which are not JSON.
        return None
    kind = next((kind for name, kind in _FIELDS.items() if name in line), StepRecord)
    try:
        return kind.model_validate_json(line)
    except ValidationError:
        return None


def parse_step(event: Mapping[str, Any]) -> StepRecord:
    """Read an event of the records as a step, or say which step lacks what."""
    kind = next((kind for name, kind in _KINDS.items() if name in event), StepRecord)
    try:
        return kind.model_validate(dict(event))
    except ValidationError as error:
        raise DataError(f"step {event.get('step', '?')}: {first_problem(error)}.") from None
