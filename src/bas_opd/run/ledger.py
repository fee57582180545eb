"""What a run did and what it cost, and with queries the proof of its budget. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from bas_opd.run.record import (
    GenerationRecord,
    GradedRecord,
    PolicyRecord,
    QueryRecord,
    StepRecord,
)

SUMMED = (
    "candidate_tokens",
    "calls",
    "scored_tokens",
    "processed_tokens",
    "prefilled_prompts",
    "dropped_labels",
)
"""Fields of a step with queries whose totals are their sums."""
LATER = ("prefilled_tokens", "sampled_tokens", "total_tokens", "rollouts", "updates")
"""Totals that version 0.1 did not keep; they are recomputed from the steps of its runs."""


@dataclass(slots=True, kw_only=True)
class Ledger:
    """Running totals over the steps of a run; `Ledger(**ledger.totals())` carries them on."""

    steps: int = 0
    candidates: int = 0
    candidate_tokens: int = 0
    """Response tokens of all candidates: what full querying would have scored."""
    calls: int = 0
    """Rows the teacher scored."""
    scored_tokens: int = 0
    processed_tokens: int = 0
    """Prompt and response tokens the teacher really computed."""
    prefilled_prompts: int = 0
    student_tokens: int = 0
    prefilled_tokens: int = 0
    """Prompt tokens of the sampler, each prompt once."""
    sampled_tokens: int = 0
    """Response tokens of all rollouts."""
    total_tokens: int = 0
    """All of the above together, the student's three times (docs/guarantees.md)."""
    overrun: int = 0
    """Largest excess of a step over its budget K, in the unit of the budget."""
    ranked_steps: int = 0
    """Steps with at least one row chosen for its score."""
    learned_steps: int = 0
    """Steps after which the predictor was updated."""
    empty_steps: int = 0
    """Steps with nothing to learn from, hence without an update."""
    skipped_steps: int = 0
    """Steps whose loss or gradient was not finite."""
    dropped_labels: int = 0
    rollouts: int = 0
    """Responses that the student sampled."""
    generated: int = 0
    """Responses that a teacher generated."""
    rewards: int = 0
    """Responses that were graded."""
    deferred: int = 0
    """Of these, what no rule could read."""
    judged: int = 0
    """Of these, what a judge decided."""
    reference_rows: int = 0
    """Rows that the initial model scored, for a KL penalty."""
    updates: int = 0
    """Optimizer updates."""
    dropped_groups: int = 0
    """Prompts that were sampled and not learned from."""
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, steps: Iterable[StepRecord]) -> Ledger:
        """Return the ledger of a run after these steps."""
        ledger = cls()
        for step in steps:
            ledger.charge(step)
        return ledger

    @classmethod
    def carried_on(cls, totals: Any) -> Ledger | None:
        """Return the ledger of saved totals; None if an older version kept fewer of them."""
        counts = {each.name for each in fields(cls)} - {"seconds"}
        if not isinstance(totals, dict) or not isinstance(totals.get("seconds"), dict):
            return None
        if not all(type(totals.get(name)) is int for name in counts):
            return None
        return cls(**{name: totals[name] for name in counts}, seconds=dict(totals["seconds"]))

    def charge(self, step: StepRecord) -> None:
        """Add the work of one step, as it is on record."""
        self.steps += 1
        self.student_tokens += step.student_tokens
        for name, tokens in step.token_costs.items():
            setattr(self, name, getattr(self, name) + tokens)
        self.empty_steps += step.is_empty
        self.skipped_steps += step.is_skipped
        for phase, seconds in step.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
        self.rollouts += step.rollouts
        self.updates += step.updates_made
        if isinstance(step, GradedRecord):
            self.rewards += len(step.grades or ())
            self.deferred += step.deferred
            self.judged += len(step.judged)
        if isinstance(step, GenerationRecord):
            self.generated += step.generated
        if isinstance(step, PolicyRecord):
            self.reference_rows += step.reference_rows
            self.dropped_groups += step.dropped_groups
        if isinstance(step, QueryRecord):
            self.candidates += len(step.candidates)
            self.overrun = max(self.overrun, step.overrun)
            self.ranked_steps += bool(step.is_ranked and set(step.selected) - set(step.explored))
            self.learned_steps += step.learned
            for name in SUMMED:
                setattr(self, name, getattr(self, name) + getattr(step, name))

    def totals(self) -> dict[str, Any]:
        """Return everything counted so far, as plain data."""
        return asdict(self)
