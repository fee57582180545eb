"""The record of a step as a reader holds it, and what the steps of a run add up to.

Needs no torch: whoever has the records can check them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from bas_opd.errors import DataError

SUMMED = (
    "candidate_tokens",
    "calls",
    "scored_tokens",
    "processed_tokens",
    "prefilled_prompts",
    "student_tokens",
    "dropped_labels",
)
"""Fields of a step whose totals are their sums."""


class StepRecord(BaseModel):
    """What `ledger.step_event` wrote, as far as it can be checked."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    step: int
    examples: list[str]
    per_prompt: int
    response_tokens: list[int]
    candidates: list[int]
    candidate_tokens: int
    feature_names: list[str]
    features: list[list[float | None]]
    has_entropy: bool
    query_ratio: str
    budget: int
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
    student_tokens: int
    is_valid: bool
    learned: bool
    dropped_labels: int
    seconds: dict[str, float]

    @model_validator(mode="after")
    def _columns_fit(self) -> StepRecord:
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
        return self

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


def parse_step(event: Mapping[str, Any]) -> StepRecord:
    """Read an event of the records as a step, or say which step lacks what."""
    try:
        return StepRecord.model_validate(dict(event))
    except ValidationError as error:
        detail = error.errors()[0]
        field = ".".join(map(str, detail["loc"]))
        reason = detail["msg"].removeprefix("Value error, ")
        where = f"step {event.get('step', '?')}"
        raise DataError(
            f"{where}: {field}: {reason}." if field else f"{where}: {reason}."
        ) from None


def totals(steps: Sequence[StepRecord]) -> dict[str, Any]:
    """Return what the ledger of a run holds after these steps."""
    seconds: dict[str, float] = {}
    for step in steps:
        for phase, spent in step.seconds.items():
            seconds[phase] = seconds.get(phase, 0.0) + spent
    return {
        "steps": len(steps),
        "candidates": sum(len(step.candidates) for step in steps),
        **{name: sum(getattr(step, name) for step in steps) for name in SUMMED},
        "overrun": max((step.overrun for step in steps), default=0),
        "ranked_steps": sum(
            bool(step.score_of and set(step.selected) - set(step.explored)) for step in steps
        ),
        "learned_steps": sum(step.learned for step in steps),
        "empty_steps": sum(not step.selected for step in steps),
        "skipped_steps": sum(bool(step.selected) and not step.is_valid for step in steps),
        "seconds": seconds,
    }
