"""Results of runs that never were, for tests of what reads results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bas_opd.reproduce.results import Cost, Count, Run, RunResult, Steps

N = 20


def result(arm: str, seed: int | None, colour: int, count: int = 4, **changes: Any) -> RunResult:
    """A result of 20 questions, ten of each kind, of which so many are right."""
    is_base = seed is None
    values: dict[str, Any] = {
        "arm": arm,
        "seed": seed,
        "identity": "i",
        "overrides": [],
        "learning_rate": 5e-5,
        "train": "t",
        "train_n": 3120,
        "task": "FineSearch",
        "split": "test",
        "questions": "q",
        "base": "b",
        "device": "CPU",
        "jobs": 4,
        "n": N,
        "kinds": {"colour": Count(n=10, correct=colour), "count": Count(n=10, correct=count)},
        "pairs": None,
        "outcomes": "1" * (colour + count) + "0" * (N - colour - count),
        "cost": None if is_base else cost(),
        "steps": None if is_base else steps(),
    }
    return RunResult(**{**values, **changes})


def answered(run: Run, kinds: Sequence[str], right: Callable[[int], bool]) -> RunResult:
    """A result of a planned run: of the questions of these kinds, so many are right."""
    outcomes = ["1" if right(place) else "0" for place in range(len(kinds))]
    counts = {
        kind: Count(
            n=list(kinds).count(kind),
            correct=sum(o == "1" and k == kind for o, k in zip(outcomes, kinds, strict=True)),
        )
        for kind in kinds
    }
    is_base = run.planned.seed is None
    return RunResult(
        **run.planned.model_dump(),
        device="CPU",
        jobs=1,
        n=len(kinds),
        kinds=counts,
        pairs=None,
        outcomes="".join(outcomes),
        cost=None if is_base else cost(),
        steps=None if is_base else steps(),
    )


def cost(**changes: Any) -> Cost:
    values: dict[str, Any] = {
        "candidates": 448,
        "candidate_tokens": 4000,
        "calls": 112,
        "scored_tokens": 1000,
        "processed_tokens": 9000,
        "student_tokens": 8000,
        "prefilled_tokens": 5000,
        "sampled_tokens": 4500,
        "total_tokens": 42_500,
        "overrun": 0,
        "ranked_steps": 1,
        "seconds": {"rollout": 2.0, "teacher": 1.5, "student": 0.5},
    }
    return Cost(**{**values, **changes})


def steps() -> Steps:
    return Steps(loss=[0.5, None], calls=[56, 56], scored_tokens=[500, 500], seconds=[2.0, 2.0])


def cells(table: str, arm: str) -> list[list[str]]:
    """The rows of an arm, one of each Markdown table."""
    rows = [line for line in table.splitlines() if line.startswith(f"| {arm} |")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
