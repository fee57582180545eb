"""The event of a step, made of its report: what `record` reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bas_opd.run.record import total_tokens
from bas_opd.types import (
    FEATURES,
    Budget,
    Candidates,
    Crop,
    Graded,
    PolicyReport,
    QueryReport,
    StepReport,
)

if TYPE_CHECKING:
    from torch import Tensor


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
        **({} if rollouts.sampled_at is None else {"sampled_at": rollouts.sampled_at}),
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
    shown = [_shown(report, row, decode, data_folder) for row in _rows_to_show(report)[:examples]]
    closing: dict[str, Any] = {
        "seconds": report.seconds,
        "waited_seconds": report.waited_seconds,
        "shown": shown,
    }
    if len(update.tokens_of_ranks) > 1:
        closing["student_tokens_of_ranks"] = list(update.tokens_of_ranks)
    if update.idle_passes is not None:
        closing["idle_passes"] = update.idle_passes
    if (engine := rollouts.engine) is not None:
        closing["engine"] = {
            "version": engine.version,
            "rescored_rows": list(engine.rows),
            "rescored_tokens": engine.tokens,
            "logprob_gap": engine.logprob_gap,
        }
    if (found := update.importance) is not None:
        closing["importance"] = {
            "tokens": found.tokens,
            "mean_difference": found.total_difference / max(1, found.tokens),
            "max_difference": found.max_difference,
            "truncated": found.truncated,
        }
    if report.queries is None:
        own = _policy(report.policy) if report.policy else {}
        if report.generation:
            own = {
                **_grades(report.generation.graded),
                "generated": len(responses),
                "student_prompt_tokens": list(report.generation.student_prompts),
            }
        return {**core, "rows": list(report.rows), **own, **outcome, **closing}
    asked, learned = _queries(report, report.queries)
    return {**core, **asked, **outcome, **learned, **closing}


def _rows_to_show(report: StepReport) -> list[int]:
    """Return the rows that were learned from; without queries also the others, after them.

    With rewards, rows that had an advantage come first: the others moved nothing.
    """
    others = () if report.queries else range(len(report.rollouts))
    policy = report.policy
    moved = (row for row in report.rows if policy and policy.advantages[row])
    return list(dict.fromkeys((*moved, *report.rows, *others)))


def _teacher_tokens(report: StepReport) -> int:
    if report.queries:
        return report.queries.teacher.processed_tokens + report.queries.teacher.rescored_tokens
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
        "kl": policy.kl,
        "clip_share": policy.clip_share,
        "entropy": policy.entropy,
    }


def _queries(report: StepReport, queries: QueryReport) -> tuple[dict[str, Any], dict[str, Any]]:
    candidates, selection, teacher = queries.candidates, queries.selection, queries.teacher
    rows = list(candidates.rows)
    budget = Budget.of(selection.budget)
    # What the teacher did, not what it was allowed to do.
    calls, dropped = len(teacher.rows), sorted({*selection.rows} - {*teacher.rows})
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
        **({"dropped": dropped} if dropped else {}),
        **done,
        "overrun": max(0, done[budget.kind] - budget.limit),
        "prefilled_prompts": teacher.prefilled_prompts,
        **({} if teacher.support is None else {"support": teacher.support}),
        **({"rescored_tokens": teacher.rescored_tokens} if teacher.rescored_tokens else {}),
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
