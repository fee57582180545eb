from __future__ import annotations

import json
import math
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bas_opd.run.events import step_event
from bas_opd.run.ledger import Ledger
from bas_opd.run.record import QueryRecord, parse_step
from bas_opd.teacher import LocalScores
from bas_opd.types import (
    Budget,
    Candidates,
    Costs,
    Crop,
    Example,
    Prompt,
    QueryReport,
    Rollouts,
    Selection,
    StepReport,
    StudentUpdate,
)

DATA = Path("/sets/pairs")


def example(name: str, crop: Crop | None) -> Example:
    return Example(
        id=name, image=DATA / f"{name}.png", question=f"{name}?", answer="yes", crop=crop
    )


def prompt(length: int) -> Prompt:
    return Prompt(
        input_ids=torch.zeros(length, dtype=torch.long),
        pixel_values=torch.zeros(4, 3),
        grid=torch.ones(1, 3),
    )


def report() -> StepReport:
    """Three prompts of two rollouts; prompt 1 has no crop, row 5 no token, K is 2."""
    rollouts = Rollouts(
        step=7,
        examples=(
            example("a", Crop(area=0.25, box=(0, 0, 4, 4))),
            example("b", None),
            example("c", Crop(area=0.5, image=Path("/elsewhere/c.png"))),
        ),
        prompts=(prompt(10), prompt(11), prompt(12)),
        per_prompt=2,
        tokens=torch.arange(18).reshape(6, 3),
        lengths=torch.tensor([1, 2, 3, 3, 3, 0]),
        logprobs=torch.zeros(6, 3),
        entropies=None,
    )
    rows = rollouts.candidates()
    head: Any = None
    return StepReport(
        rollouts=rollouts,
        rows=(1, 4),
        update=StudentUpdate(
            loss=0.5,
            gradient_norm=2.0,
            learning_rate=1e-6,
            is_valid=True,
            observed={1: 0.03},
            dropped=1,
            processed_tokens=29,
        ),
        seconds={"rollout": 2.0, "teacher": 0.5},
        queries=QueryReport(
            query_ratio=Decimal("0.5"),
            candidates=Candidates(
                rows=rows,
                values=torch.arange(6 * len(rows), dtype=torch.float64).reshape(-1, 6),
                has_entropy=False,
            ),
            selection=Selection(
                rows=(1, 4), budget=2, explored=frozenset({4}), scores={0: 0.1, 1: 0.9, 4: 0.2}
            ),
            teacher=LocalScores(
                hidden={1: torch.zeros(2, 1), 4: torch.zeros(3, 1)},
                head=head,
                processed_tokens=27,
                prefilled_prompts=2,
            ),
            learned=True,
        ),
    )


def queried(report: StepReport, **changes: Any) -> StepReport:
    """Return the report with something else about its queries."""
    assert report.queries is not None
    return replace(report, queries=replace(report.queries, **changes))


def empty(report: StepReport) -> StepReport:
    head: Any = None
    update = replace(report.update, is_valid=False, observed={}, dropped=0, processed_tokens=0)
    return queried(
        replace(report, rows=(), update=update),
        selection=Selection(rows=(), budget=0),
        teacher=LocalScores(hidden={}, head=head, processed_tokens=0, prefilled_prompts=0),
        learned=False,
    )


def charge(ledger: Ledger, report: StepReport) -> None:
    """Charge a step as the loop does: from its record."""
    ledger.charge(parse_step(step_event(report, decode=words, examples=0)))


def words(tokens: Tensor) -> str:
    return " ".join(map(str, tokens.tolist()))


def test_the_ledger_adds_up_what_the_steps_did() -> None:
    ledger = Ledger()
    charge(ledger, report())
    charge(ledger, report())
    charge(ledger, empty(report()))
    assert ledger.totals() == {
        "steps": 3,
        "candidates": 9,
        "candidate_tokens": 18,
        "calls": 4,
        "scored_tokens": 10,
        "processed_tokens": 54,
        "prefilled_prompts": 4,
        "student_tokens": 58,
        "prefilled_tokens": 99,
        "sampled_tokens": 36,
        "total_tokens": 99 + 36 + 54 + 3 * 58,
        "overrun": 0,
        "ranked_steps": 2,
        "learned_steps": 2,
        "empty_steps": 1,
        "skipped_steps": 0,
        "dropped_labels": 2,
        "rollouts": 18,
        "updates": 2,
        **dict.fromkeys(("generated", "rewards", "deferred", "judged"), 0),
        **dict.fromkeys(("reference_rows", "dropped_groups"), 0),
        "seconds": {"rollout": 6.0, "teacher": 1.5},
    }


def test_a_teacher_that_scores_more_than_k_rows_shows_as_overrun() -> None:
    step = report()
    assert step.queries is not None
    teacher: Any = step.queries.teacher
    greedy = queried(step, teacher=replace(teacher, hidden={**teacher.hidden, 0: torch.zeros(1)}))
    ledger = Ledger()
    charge(ledger, greedy)
    charge(ledger, step)
    assert ledger.overrun == 1
    assert ledger.calls == 5
    event = step_event(greedy, decode=words, examples=0)
    assert (event["overrun"], event["calls"], event["scored"]) == (1, 3, [0, 1, 4])


def test_a_step_that_was_not_finite_counts_as_skipped_and_not_as_empty() -> None:
    ledger = Ledger()
    step = report()
    charge(ledger, replace(step, update=replace(step.update, is_valid=False, loss=math.nan)))
    assert (ledger.skipped_steps, ledger.empty_steps) == (1, 0)


def test_rows_drawn_at_random_do_not_count_as_ranked() -> None:
    ledger = Ledger()
    step = report()
    assert step.queries is not None
    charge(ledger, queried(step, selection=Selection(rows=(1, 4), budget=2)))
    everything_explored = replace(step.queries.selection, explored=frozenset({1, 4}))
    charge(ledger, queried(step, selection=everything_explored))
    assert ledger.ranked_steps == 0


def test_a_ledger_built_from_totals_carries_on() -> None:
    straight, first = Ledger(), Ledger()
    for ledger in (straight, first):
        charge(ledger, report())
    second = Ledger(**json.loads(json.dumps(first.totals())))
    for ledger in (straight, second):
        charge(ledger, report())
    assert second == straight


def test_totals_are_a_copy() -> None:
    ledger = Ledger()
    charge(ledger, report())
    ledger.totals()["seconds"]["rollout"] = 99.0
    assert ledger.seconds["rollout"] == 2.0


def test_the_event_of_a_budget_in_tokens_says_what_rows_and_prompts_cost() -> None:
    costs = Costs(
        rows={0: 0, 1: 1, 4: 2}, prompts={0: 0, 1: 0, 4: 2}, openings={0: 10, 2: 12, 1: 11}
    )
    budget = Budget(limit=26, kind="processed_tokens", costs=costs)
    made = queried(report(), selection=Selection(rows=(1, 4), budget=budget))
    event = step_event(made, decode=words, examples=0)
    assert event["costs"] == [0, 1, 2]
    assert event["openings"] == [10, 11, 12]
    assert (event["budget"], event["spent"], event["full_cost"]) == (26, 25, 25)
    assert event["overrun"] == 1  # of the 27 that the teacher says it processed
    record = parse_step(event)
    assert isinstance(record, QueryRecord)
    assert record.used == 27
    assert record.budget_of(26).spent((1, 4)) == 25


def test_texts_are_numbered_within_their_prompt() -> None:
    candidates = replace(
        queries_of(report()).candidates, prompts=(0, 0, 2), texts=((5, 6), (7,), (7,))
    )
    event = step_event(queried(report(), candidates=candidates), decode=words, examples=0)
    assert event["texts"] == [0, 1, 0]
    again = replace(candidates, texts=((7,), (7,), (5, 6)))
    event = step_event(queried(report(), candidates=again), decode=words, examples=0)
    assert event["texts"] == [0, 0, 0]


def test_grades_are_on_record_where_they_were_used() -> None:
    candidates = replace(queries_of(report()).candidates, grades=("right", "wrong", "unread"))
    event = step_event(queried(report(), candidates=candidates), decode=words, examples=0)
    assert event["grades"] == ["right", "wrong", "unread"]


def queries_of(report: StepReport) -> QueryReport:
    assert report.queries is not None
    return report.queries


def test_the_event_holds_everything_of_the_step() -> None:
    event = step_event(report(), decode=words, examples=4, data_folder=DATA)
    shown = event.pop("shown")
    assert event == {
        "event": "step",
        "step": 7,
        "examples": ["a", "b", "c"],
        "per_prompt": 2,
        "prompt_tokens": [10, 11, 12],
        "response_tokens": [1, 2, 3, 3, 3, 0],
        "candidates": [0, 1, 4],
        "candidate_tokens": 6,
        "feature_names": [
            *("mean_nll", "p90_nll", "mean_entropy"),
            *("response_tokens", "prompt_tokens", "crop_area"),
        ],
        "features": [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 16, 17]],
        "has_entropy": False,
        "query_ratio": "0.5",
        "budget": 2,
        "budget_kind": "calls",
        "spent": 2,
        "full_cost": 3,
        "texts": None,
        "selected": [1, 4],
        "explored": [4],
        "scores": [0.1, 0.9, 0.2],
        "utility": [0.03, None],
        "scored": [1, 4],
        "calls": 2,
        "overrun": 0,
        "scored_tokens": 5,
        "processed_tokens": 27,
        "prefilled_prompts": 2,
        "student_tokens": 29,
        "prefilled_tokens": 33,
        "sampled_tokens": 12,
        "total_tokens": 33 + 12 + 27 + 3 * 29,
        "loss": 0.5,
        "gradient_norm": 2.0,
        "learning_rate": 1e-6,
        "is_valid": True,
        "learned": True,
        "dropped_labels": 1,
        "seconds": {"rollout": 2.0, "teacher": 0.5},
        "waited_seconds": 0.0,
    }
    assert shown == [
        {
            "row": 1,
            "example": "a",
            "image": "a.png",
            "crop": {"area": 0.25, "box": [0, 0, 4, 4], "image": None},
            "question": "a?",
            "answer": "yes",
            "response": "3 4",
            "score": 0.9,
            "utility": 0.03,
        },
        {
            "row": 4,
            "example": "c",
            "image": "c.png",
            "crop": {"area": 0.5, "box": None, "image": "/elsewhere/c.png"},
            "question": "c?",
            "answer": "yes",
            "response": "12 13 14",
            "score": 0.2,
            "utility": None,
        },
    ]


def test_the_scored_tokens_can_be_recomputed_from_the_event() -> None:
    event = step_event(report(), decode=words, examples=0)
    assert sum(event["response_tokens"][row] for row in event["scored"]) == event["scored_tokens"]
    assert set(event["scored"]) <= set(event["selected"]) <= set(event["candidates"])


def test_only_so_many_rows_are_shown() -> None:
    assert len(step_event(report(), decode=words, examples=1)["shown"]) == 1
    assert step_event(report(), decode=words, examples=0)["shown"] == []


def test_an_empty_step_has_a_record_too() -> None:
    event = step_event(empty(report()), decode=words, examples=4)
    assert (event["calls"], event["scored"], event["scored_tokens"]) == (0, [], 0)
    assert event["scores"] == [None, None, None]


def test_a_step_of_a_method_without_queries_has_its_core_alone() -> None:
    event = step_event(replace(report(), queries=None), decode=words, examples=1)
    assert not {"candidates", "budget", "calls", "learned"} & event.keys()
    ledger = Ledger()
    ledger.charge(parse_step(event))
    assert (ledger.steps, ledger.student_tokens, ledger.calls, ledger.empty_steps) == (1, 29, 0, 0)
    assert ledger.total_tokens == event["total_tokens"] == 33 + 12 + 3 * 29
