"""Rewards, advantages and rounds of a run computed again from its records. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from bas_opd.answers import answer_key
from bas_opd.config.schema import Config, overlong_cache
from bas_opd.rewards import advantages, mixed_groups, overlong_penalties
from bas_opd.run.record import GenerationRecord, GradedRecord, PolicyRecord, StepRecord


def policy_problems(step: PolicyRecord, config: Config, *, by_last_word: bool) -> Iterator[str]:
    """Say where grades, rewards, advantages, kept prompts or updates do not follow (GRPO, DAPO)."""
    if step.per_prompt != config.rollout.per_prompt:
        yield f"per_prompt is {step.per_prompt}, as no setting says."
        return
    yield from _rounds(step, config)
    yield from _grades(step, config, by_last_word=by_last_word)
    yield from _rewards(step, config)
    yield from _updates(step, config)


def generation_problems(
    step: GenerationRecord, config: Config, *, by_last_word: bool
) -> Iterator[str]:
    """Say where the rows that were learned from are not those that the settings keep (SFT)."""
    yield from _grades(step, config, by_last_word=by_last_word)
    if step.per_prompt != config.rollout.per_prompt:
        yield f"per_prompt is {step.per_prompt}, as no setting says."
        return
    if (step.grades is None) != (config.sft.keep == "all"):
        yield "grades do not fit sft.keep."
    kept = [
        row
        for row, length in enumerate(step.response_tokens)
        if length > 0 and (step.grades is None or step.grades[row] == "right")
    ]
    if step.rows != kept:
        yield "rows are not those that sft.keep keeps."
        return
    if step.generated != len(step.response_tokens):
        yield f"generated is {step.generated}, but there are {len(step.response_tokens)} rows."
    if len(step.examples) > config.rollout.prompts_per_step:
        yield f"it has {len(step.examples)} examples, more than a step has prompts."
    if len(step.response_tokens) != len(step.examples) * config.rollout.per_prompt:
        yield "response_tokens are not those of its examples."
    elif (prompts := step.student_prompt_tokens) is not None:
        if len(prompts) != len(step.examples):
            yield "student_prompt_tokens and examples differ in length."
            return
        longest = config.data.max_prompt_tokens
        if not all(1 <= tokens <= longest for tokens in prompts):
            yield f"student_prompt_tokens has one that is not from 1 to {longest}."
            return
        least, most = _tokens(step, kept, prompts)
        if not least <= step.student_tokens <= most:
            yield f"student_tokens is {step.student_tokens}, but its rows make {least} to {most}."


def _grades(step: GradedRecord, config: Config, *, by_last_word: bool) -> Iterator[str]:
    """Whether a row is right follows from its text, where that is on record."""
    if step.judged and config.judge.url is None:
        yield f"judged names row {step.judged[0]}, but the run has no judge."
    if any((step.grades or ())[row] == "unread" for row in step.judged):
        yield "judged names a row that is unread."
    limit = config.rollout.max_response_tokens
    for shown in step.shown if step.grades else ():
        # A judge may have decided; at the limit the records do not say whether it was cut.
        is_open = shown.row in step.judged or step.response_tokens[shown.row] >= limit
        key = answer_key(shown.question, shown.answer, by_last_word=by_last_word)
        if is_open or key is None or step.grades is None:
            continue
        expected = key.grade(shown.response, was_cut=False)
        if expected != step.grades[shown.row]:
            yield (
                f"grades has row {shown.row} as {step.grades[shown.row]}, but it reads as "
                f"{expected}."
            )


def _rounds(step: PolicyRecord, config: Config) -> Iterator[str]:
    """Rounds follow while too few prompts are kept, and then no more."""
    per_step, per_prompt = config.rollout.prompts_per_step, config.rollout.per_prompt
    most = config.dapo.rounds if config.method.name == "dapo" else 1
    if sum(step.rounds) != len(step.examples) or max(step.rounds, default=0) > per_step:
        yield f"rounds of {step.rounds} prompts do not make {len(step.examples)} examples."
    if not 1 <= len(step.rounds) <= most:
        yield f"rounds holds {len(step.rounds)}, where the settings allow 1 to {most}."
    everything = list(range(len(step.examples)))
    mixed = mixed_groups([grade == "right" for grade in step.grades or ()], per_prompt)
    expected = mixed[:per_step] if config.method.name == "dapo" else everything
    if step.kept != expected:
        yield "kept names other prompts than the grades leave."
    if config.method.name == "dapo":
        before = sum(place < sum(step.rounds[:-1]) for place in mixed)
        if before >= per_step:
            yield "rounds holds one that was not needed."
        if len(mixed) < per_step and len(step.rounds) < most:
            yield "rounds ended before enough prompts were kept."


def _rewards(step: PolicyRecord, config: Config) -> Iterator[str]:
    penalties = [0.0] * len(step.rewards)
    if config.method.name == "dapo":
        limit = config.rollout.max_response_tokens
        penalties = overlong_penalties(
            step.response_tokens, limit=limit, cache=overlong_cache(config)
        )
    due = [
        float(grade == "right") + penalty
        for grade, penalty in zip(step.grades or (), penalties, strict=True)
    ]
    if not _same(step.rewards, due):
        yield "rewards do not follow from grades and lengths."
    found = advantages(step.rewards, config.rollout.per_prompt, scale=config.grpo.scale)
    if not _same(step.advantages, found):
        yield "advantages do not follow from rewards."


def _updates(step: PolicyRecord, config: Config) -> Iterator[str]:
    """Each mini-batch learns from its rows with an advantage; with a KL penalty, from all."""
    per_prompt, beta = config.rollout.per_prompt, config.grpo.beta
    size = math.ceil(config.rollout.prompts_per_step / config.grpo.updates_per_step)
    parts = [step.kept[at : at + size] for at in range(0, len(step.kept), size)]
    expected = [
        [
            row
            for place in part
            for row in range(place * per_prompt, (place + 1) * per_prompt)
            if step.response_tokens[row] > 0 and (step.advantages[row] != 0 or beta > 0)
        ]
        for part in parts
    ]
    rows = [row for part in expected for row in part]
    if [each.rows for each in step.updates] != (expected or [[]]):
        yield "updates are not of the rows that the kept prompts have."
    if step.rows != rows:
        yield "rows are not those of the updates."
    if any(each.is_valid and not each.rows for each in step.updates):
        yield "updates has one without rows that moved the weights."
    if step.is_valid != any(each.is_valid for each in step.updates):
        yield f"is_valid is {step.is_valid}, but its updates say otherwise."
    if step.reference_rows != (len(rows) if beta else 0):
        yield f"reference_rows is {step.reference_rows}, but {len(rows)} rows were learned from."
    passes = {
        "student_tokens": expected,
        "reference_tokens": [rows] if beta else [],
        "rescored_tokens": [rows] if len(parts) > 1 else [],
    }
    for name, those in passes.items():
        bounds = [_tokens(step, each, step.prompt_tokens) for each in those]
        least, most = sum(low for low, _ in bounds), sum(high for _, high in bounds)
        if not least <= getattr(step, name) <= most:
            yield f"{name} is {getattr(step, name)}, but its rows make {least} to {most}."


def _tokens(step: StepRecord, rows: Sequence[int], prompts: Sequence[int]) -> tuple[int, int]:
    """Return the tokens of a pass over rows: prompts once each, or once for each of their rows."""
    places = [row // step.per_prompt for row in rows]
    fed = sum(step.response_tokens[row] - 1 for row in rows)  # the last token is never fed
    once, repeated = (sum(prompts[p] for p in each) for each in (set(places), places))
    return fed + once, fed + repeated


def _same(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    return len(ours) == len(theirs) and all(
        math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) for a, b in zip(ours, theirs, strict=True)
    )
