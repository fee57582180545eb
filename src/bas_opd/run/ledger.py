"""What a run asked of its teacher and what that cost: the proof of the budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from bas_opd.types import FEATURES, Crop, StepReport


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
    overrun: int = 0
    """Largest excess of a step's calls over its budget K."""
    ranked_steps: int = 0
    """Steps with at least one row chosen for its score."""
    learned_steps: int = 0
    """Steps after which the predictor was updated."""
    empty_steps: int = 0
    """Steps without a query, hence without an update."""
    skipped_steps: int = 0
    """Steps whose loss or gradient was not finite."""
    dropped_labels: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def charge(self, report: StepReport) -> None:
        """Add the work of one step."""
        calls = _calls(report)
        self.steps += 1
        self.candidates += len(report.features.rows)
        self.candidate_tokens += _candidate_tokens(report)
        self.calls += calls
        if report.teacher is not None:
            self.scored_tokens += report.teacher.scored_tokens
            self.processed_tokens += report.teacher.processed_tokens
            self.prefilled_prompts += report.teacher.prefilled_prompts
        self.student_tokens += report.update.processed_tokens
        self.overrun = max(self.overrun, calls - report.selection.budget)
        self.ranked_steps += bool(_ranked(report))
        self.learned_steps += report.learned
        self.empty_steps += not report.selection.rows
        self.skipped_steps += bool(report.selection.rows) and not report.update.is_valid
        self.dropped_labels += report.update.dropped_labels
        for phase, seconds in report.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def totals(self) -> dict[str, Any]:
        """Everything counted so far, as plain data."""
        return asdict(self)


def step_event(
    report: StepReport,
    *,
    decode: Callable[[Tensor], str],
    examples: int,
    data_folder: Path | None = None,
) -> dict[str, Any]:
    """The record of one step: enough to check its budget and to show its rows without the model.

    Row numbers count rollouts prompt by prompt, so row // per_prompt is the place of its example.
    `features` and `scores` follow the order of `candidates`, `utility` that of `selected`.
    """
    rollouts, selection, update = report.rollouts, report.selection, report.update
    teacher = report.teacher
    calls = _calls(report)
    return {
        "event": "step",
        "step": rollouts.step,
        "examples": [example.id for example in rollouts.examples],
        "per_prompt": rollouts.per_prompt,
        "prompt_tokens": [prompt.length for prompt in rollouts.prompts],
        "response_tokens": rollouts.lengths.tolist(),
        "candidates": list(report.features.rows),
        "candidate_tokens": _candidate_tokens(report),
        "feature_names": list(FEATURES),
        "features": report.features.values.tolist(),
        "has_entropy": report.features.has_entropy,
        "query_ratio": str(report.query_ratio),
        "budget": selection.budget,
        "selected": list(selection.rows),
        "explored": sorted(selection.explored),
        "scores": [selection.scores.get(row) for row in report.features.rows],
        "utility": [update.utility.get(row) for row in selection.rows],
        "scored": [] if teacher is None else list(teacher.rows),
        "calls": calls,
        "overrun": max(0, calls - selection.budget),
        "scored_tokens": 0 if teacher is None else teacher.scored_tokens,
        "processed_tokens": 0 if teacher is None else teacher.processed_tokens,
        "prefilled_prompts": 0 if teacher is None else teacher.prefilled_prompts,
        "student_tokens": update.processed_tokens,
        "loss": update.loss,
        "gradient_norm": update.gradient_norm,
        "learning_rate": update.learning_rate,
        "is_valid": update.is_valid,
        "learned": report.learned,
        "dropped_labels": update.dropped_labels,
        "seconds": report.seconds,
        "shown": [_shown(report, row, decode, data_folder) for row in selection.rows[:examples]],
    }


def _calls(report: StepReport) -> int:
    """What the teacher did, not what it was allowed: an overrun must be able to show."""
    return 0 if report.teacher is None else len(report.teacher.rows)


def _candidate_tokens(report: StepReport) -> int:
    return int(report.rollouts.lengths[list(report.features.rows)].sum())


def _ranked(report: StepReport) -> set[int]:
    selection = report.selection
    return set(selection.rows) - selection.explored if selection.scores else set()


def _shown(
    report: StepReport, row: int, decode: Callable[[Tensor], str], data_folder: Path | None
) -> dict[str, Any]:
    """One selected row as a reader wants to see it."""
    rollouts = report.rollouts
    example = rollouts.example_of(row)
    return {
        "row": row,
        "example": example.id,
        "image": _reference(example.image, data_folder),
        "crop": None if example.crop is None else _crop(example.crop, data_folder),
        "question": example.question,
        "answer": example.answer,
        "response": decode(rollouts.tokens[row, : int(rollouts.lengths[row])]),
        "score": report.selection.scores.get(row),
        "utility": report.update.utility.get(row),
    }


def _crop(crop: Crop, data_folder: Path | None) -> dict[str, Any]:
    return {
        "area": crop.area,
        "box": None if crop.box is None else list(crop.box),
        "image": None if crop.image is None else _reference(crop.image, data_folder),
    }


def _reference(path: Path, data_folder: Path | None) -> str:
    """A path that stays true when the dataset moves, where the picture lies inside it."""
    if data_folder is not None and path.is_relative_to(data_folder):
        path = path.relative_to(data_folder)
    return path.as_posix()
