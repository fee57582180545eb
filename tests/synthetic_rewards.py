"""Steps of SFT, GRPO and DAPO that never were, with records that check out."""

from __future__ import annotations

import math
import random
from typing import Any

from bas_opd.answers import answer_key
from bas_opd.config.schema import Config, overlong_cache
from bas_opd.data.order import step_indices
from bas_opd.data.records import PreparedSet
from bas_opd.rewards import advantages, mixed_groups, overlong_penalties
from bas_opd.run.record import parse_step
from bas_opd.types import Example

POLICY_STEP: dict[str, Any] = {
    "event": "step",
    "step": 4,
    "examples": ["a", "b"],
    "per_prompt": 2,
    "prompt_tokens": [20, 20],
    "response_tokens": [3, 5, 4, 8],
    "rows": [0, 1, 2, 3],
    "grades": ["right", "wrong", "wrong", "wrong"],
    "rounds": [2],
    "rewards": [1.0, 0.0, 0.0, 0.0],
    "advantages": [0.7, -0.7, 0.0, 0.0],
    "kept": [0, 1],
    "updates": [{"rows": [0, 1, 2, 3], "loss": 0.0, "gradient_norm": 0.8, "is_valid": True}],
    "reference_rows": 4,
    "reference_tokens": 100,
    "rescored_tokens": 0,
    "kl": 0.00123,
    "student_tokens": 50,
    "loss": 0.0,
    "gradient_norm": 0.8,
    "is_valid": True,
    "seconds": {"rollout": 2.0},
}
"""A step of GRPO with a KL penalty."""
GUESSES = ("yes", "no", "2", "3", "red", "blue", "square", "star", "triangle")
"""Of which some are wrong, whatever the question."""


def reward_steps(
    config: Config, data: PreparedSet, steps: int, draw: random.Random, shown: int
) -> list[dict[str, Any]]:
    """Return so many steps of a run that grades its responses."""
    events, place = [], 0
    for number in range(steps):
        event = _step(config, data, place, draw, shown) | {"event": "step", "step": number}
        place += len(event.get("rounds", [0]))
        if config.method.name == "sft":
            event = _as_generation(event, is_graded=config.sft.keep == "right")
        events.append(event | parse_step(event).token_costs)
    return events


def _step(
    config: Config, data: PreparedSet, place: int, draw: random.Random, shown: int
) -> dict[str, Any]:
    rollout, is_dapo = config.rollout, config.method.name == "dapo"
    examples: list[Example] = []
    texts: list[str] = []
    grades: list[str] = []
    rounds: list[int] = []
    kept: list[int] = []
    while not rounds or (
        is_dapo and len(rounds) < config.dapo.rounds and len(kept) < rollout.prompts_per_step
    ):
        places = step_indices(
            len(data), rollout.prompts_per_step, config.run.seed, place + len(rounds)
        )
        batch = [data.examples[each] for each in places]
        if config.method.name == "sft":
            batch = [example for example in batch if example.has_crop]
        for example in batch:
            key = answer_key(example.question, example.answer)
            assert key is not None
            wrong = next(guess for guess in GUESSES if key.grade(guess) == "wrong")
            ease = draw.choice([0.0, 0.5, 1.0]) if is_dapo else 0.5
            for _ in range(rollout.per_prompt):
                texts.append(example.answer if draw.random() < ease else wrong)
                grades.append(key.grade(texts[-1]))
        examples += batch
        rounds.append(len(batch))
        kept = mixed_groups([grade == "right" for grade in grades], rollout.per_prompt)
    kept = kept[: rollout.prompts_per_step] if is_dapo else list(range(len(examples)))
    lengths = [draw.randint(2, 40) for _ in texts]
    penalties = [0.0] * len(texts)
    if is_dapo:
        limit = rollout.max_response_tokens
        penalties = overlong_penalties(lengths, limit=limit, cache=overlong_cache(config))
    rewards = [
        float(grade == "right") + less for grade, less in zip(grades, penalties, strict=True)
    ]
    found = advantages(rewards, rollout.per_prompt, scale=config.grpo.scale)
    size = math.ceil(rollout.prompts_per_step / config.grpo.updates_per_step)
    parts = [kept[at : at + size] for at in range(0, len(kept), size)]
    updates = [
        {
            "rows": [
                row
                for prompt in part
                for row in range(prompt * rollout.per_prompt, (prompt + 1) * rollout.per_prompt)
                if found[row] != 0 or config.grpo.beta > 0
            ],
            "loss": 0.01,
            "gradient_norm": 1.5,
            "is_valid": True,
        }
        for part in parts
    ]
    rows = [row for update in updates for row in update["rows"]]
    prompts = [20 + len(example.question) for example in examples]

    def tokens(rows: list[int]) -> int:
        return sum(prompts[row // rollout.per_prompt] + lengths[row] - 1 for row in rows)

    has_kl, has_old = config.grpo.beta > 0, len(parts) > 1
    return {
        "examples": [example.id for example in examples],
        "per_prompt": rollout.per_prompt,
        "prompt_tokens": prompts,
        "response_tokens": lengths,
        "rows": rows,
        "grades": grades,
        "judged": [],
        "rounds": rounds,
        "rewards": rewards,
        "advantages": found,
        "kept": kept,
        "updates": updates,
        "reference_rows": len(rows) if has_kl else 0,
        "reference_tokens": tokens(rows) if has_kl else 0,
        "rescored_tokens": tokens(rows) if has_old else 0,
        "logprob_gap": 1e-6,
        "kl": 0.01 * draw.random() if has_kl else None,
        "clip_share": 0.1 * draw.random() if has_old else None,
        "entropy": 1.0 + draw.random(),
        "student_tokens": tokens(rows),
        "loss": 0.01,
        "gradient_norm": 1.0 + draw.random(),
        "learning_rate": 1e-6,
        "is_valid": True,
        "seconds": {"rollout": 2.0, "reward": 0.1, "reference": 0.4, "student": 3.0},
        "shown": [
            {
                "row": row,
                "example": examples[row // rollout.per_prompt].id,
                "image": "not/read.png",
                "crop": None,
                "question": examples[row // rollout.per_prompt].question,
                "answer": examples[row // rollout.per_prompt].answer,
                "response": texts[row],
                "score": None,
                "utility": None,
            }
            for row in list(dict.fromkeys((*rows, *range(len(texts)))))[:shown]
        ],
    }


def _as_generation(event: dict[str, Any], *, is_graded: bool) -> dict[str, Any]:
    """Return the step as one of SFT, which learns from what its teacher generated."""
    names = ("rounds", "rewards", "advantages", "kept", "updates", "reference_rows", "kl")
    gone = {*names, "reference_tokens", "rescored_tokens", "logprob_gap", "clip_share", "entropy"}
    rows = [r for r, grade in enumerate(event["grades"]) if grade == "right" or not is_graded]
    prompts, lengths = event["prompt_tokens"], event["response_tokens"]
    tokens = sum(prompts[row // event["per_prompt"]] + lengths[row] - 1 for row in rows)
    kept = {name: value for name, value in event.items() if name not in gone}
    return {
        **kept,
        **({} if is_graded else {"grades": None}),
        "rows": rows,
        "generated": len(lengths),
        "student_tokens": tokens,
        "seconds": {"teacher": 2.0, "reward": 0.1, "student": 3.0},
    }
