"""Steps that never were: the events of a run without a model."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from bas_opd.budget import exploration_quota, query_budget
from bas_opd.config.schema import Config
from bas_opd.data.order import step_indices
from bas_opd.data.records import PreparedSet
from bas_opd.run.forecast import has_view
from bas_opd.run.record import QueryRecord
from bas_opd.select.rules import policy_rule
from bas_opd.types import FEATURES

PHASES = {"rollout": 2.0, "select": 0.01, "teacher": 0.5, "student": 3.0, "ema": 0.01}


def synthetic_steps(
    config: Config,
    data: PreparedSet,
    steps: int,
    draw: random.Random,
    texts: dict[str, str],
    shown: int,
) -> Iterator[dict[str, Any]]:
    """Yield so many steps of a run with these settings, each with some rows' texts."""
    held, is_trained = 0, False
    for step in range(steps):
        event = _step(config, data, step, draw, texts, shown, is_trained=is_trained)
        held = min(config.select.replay_capacity, held + len(event["selected"]))
        policy = (config.queries or config.select).policy
        learned = policy_rule(policy).learns and held >= config.select.replay_start
        event["learned"] = learned
        is_trained |= learned
        yield event


def _step(
    config: Config,
    data: PreparedSet,
    step: int,
    draw: random.Random,
    texts: dict[str, str],
    shown: int,
    *,
    is_trained: bool,
) -> dict[str, Any]:
    select, per_prompt = config.queries or config.select, config.rollout.per_prompt
    places = step_indices(len(data), config.rollout.prompts_per_step, config.run.seed, step)
    examples = [data.examples[place] for place in places]
    lengths = [draw.randint(2, 40) for _ in range(len(examples) * per_prompt)]
    rows = [r for r in range(len(lengths)) if has_view(config, examples[r // per_prompt])]
    worth = {row: draw.random() ** 3 / lengths[row] for row in rows}
    budget = query_budget(select.query_ratio, len(rows))
    scores: dict[int, float] = {}
    explored: list[int] = []
    if is_trained:
        scores = {row: worth[row] + draw.gauss(0, 0.02) for row in rows}
        order = sorted(rows, key=lambda row: (-scores[row], row))
        quota = exploration_quota(select.exploration, budget)
        best, rest = order[: budget - quota], order[budget - quota :]
        explored = sorted(draw.sample(rest, quota))
        selected = sorted([*best, *explored])
    else:
        selected = sorted(draw.sample(rows, budget))
    tokens = sum(lengths[row] for row in selected)
    prompts = [20 + len(example.question) for example in examples]

    def prompt(row: int) -> int:
        return prompts[row // per_prompt]

    return {
        "event": "step",
        "step": step,
        "examples": [example.id for example in examples],
        "per_prompt": per_prompt,
        "prompt_tokens": prompts,
        "response_tokens": lengths,
        "candidates": rows,
        "candidate_tokens": sum(lengths[row] for row in rows),
        "feature_names": list(FEATURES),
        "features": [
            [draw.random(), draw.random(), draw.random(), lengths[row], prompt(row), draw.random()]
            for row in rows
        ],
        "has_entropy": True,
        "query_ratio": str(select.query_ratio),
        "budget": budget,
        "selected": selected,
        "explored": explored,
        "scores": [scores.get(row) for row in rows],
        "utility": [worth[row] for row in selected],
        "scored": selected,
        "calls": len(selected),
        "overrun": 0,
        "scored_tokens": tokens,
        "processed_tokens": 3 * tokens,
        "prefilled_prompts": len({row // per_prompt for row in selected}),
        "student_tokens": tokens - len(selected) + sum(prompt(row) for row in selected),
        "loss": 0.1 / (step + 1),
        "gradient_norm": 1.0 / (step + 1),
        "is_valid": True,
        "dropped_labels": 0,
        "seconds": dict(PHASES),
        "shown": [
            {
                "row": row,
                "example": examples[row // per_prompt].id,
                "image": "not/read.png",
                "crop": None,
                "question": examples[row // per_prompt].question,
                "answer": examples[row // per_prompt].answer,
                "response": f"rollout {row} of step {step}",
                "score": scores.get(row),
                "utility": worth[row],
                **texts,
            }
            for row in selected[:shown]
        ],
    }


A_STEP = QueryRecord(
    step=36,
    examples=["e"] * 28,
    per_prompt=8,
    prompt_tokens=[1100] * 28,
    response_tokens=[87] * 224,
    student_tokens=0,
    prefilled_prompts=0,
    processed_tokens=0,
    feature_names=[],
    features=[[]] * 224,
    has_entropy=True,
    query_ratio="0.25",
    scored=[],
    overrun=0,
    learned=True,
    dropped_labels=0,
    seconds={"rollout": 41.0},
    calls=56,
    budget=56,
    candidates=list(range(224)),
    candidate_tokens=19377,
    selected=list(range(56)),
    explored=list(range(50, 56)),
    scores=[0.1] * 224,
    utility=[*[5.5e-3] * 50, *[3.1e-3] * 6],
    scored_tokens=3081,
    loss=0.0412,
    is_valid=True,
)
"""The paper's batch at a quarter of the queries."""
