"""Evaluation during training: the model itself, between two steps, on a prepared set.

It answers greedily and without gradients, so it draws no random number and changes no weight.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from bas_opd.config.schema import Config
from bas_opd.evaluate.answering import ModelAnswers
from bas_opd.evaluate.benchmarks import benchmark
from bas_opd.evaluate.questions import Question
from bas_opd.evaluate.scoring import score_in_memory
from bas_opd.files import hash_of
from bas_opd.run.record import EvaluationRecord
from bas_opd.types import Hooks, Prompt

if TYPE_CHECKING:
    from bas_opd.model.vlm import VisionLanguageModel
    from bas_opd.run.loop import Evaluate


def evaluator(
    config: Config,
    *,
    prompts: dict[str, Prompt] | None = None,
    prompts_per_batch: int | None = None,
) -> Evaluate | None:
    """Return how a run with these settings evaluates its model, or None if it does not.

    Pictures are decoded once, and kept in `prompts`. A batch has as many prompts as a step, unless
    `prompts_per_batch` says otherwise.
    """
    settings, rollout = config.eval, config.rollout
    if not settings.every:
        return None
    finesearch = benchmark("finesearch")
    loaded = finesearch.load(Path(settings.data or ""))
    questions = some_of_each_kind(loaded.questions, settings.limit)
    identity = hash_of({"set": loaded.fingerprint, "ids": [each.id for each in questions]})
    kept: dict[str, Prompt] = {} if prompts is None else prompts
    told: set[str] = set()
    batch = prompts_per_batch or rollout.prompts_per_batch or rollout.prompts_per_step

    def evaluate(model: VisionLanguageModel, step: int, hooks: Hooks) -> EvaluationRecord:
        from bas_opd.compute.memory import SETTINGS
        from bas_opd.run.footprint import more_room

        nonlocal batch
        began = time.monotonic()

        answering = ModelAnswers(
            model=model,
            max_response_tokens=rollout.max_response_tokens,
            prompts_per_batch=batch,
            prompts=kept,
            hooks=replace(hooks, notice=partial(_once, told, hooks.notice)),
            advice=more_room(config),
            lower=SETTINGS,
        )
        answered = list(answering.answers(questions))
        batch = answering.greedy.prompts_per_batch
        scored = score_in_memory(finesearch, questions, answered)
        summary = finesearch.summarise(scored)
        found = [each for each in (summary.primary, summary.beside) if each is not None]
        return EvaluationRecord(
            step=step,
            metric=summary.primary.name,
            accuracies={each.name: each.value or 0.0 for each in found},
            n=summary.n,
            questions=identity,
            seconds=time.monotonic() - began,
        )

    return evaluate


def _once(told: set[str], notice: Callable[[str], None], text: str) -> None:
    """Give a notice unless it was given before, whatever numbers follow its colon."""
    if (what := text.partition(":")[0]) not in told:
        told.add(what)
        notice(text)


def some_of_each_kind(questions: Sequence[Question], limit: int | None) -> Sequence[Question]:
    """Return at most so many questions, as many of each kind as possible, the first of each."""
    kinds: dict[str, list[Question]] = {}
    for question in questions:
        kinds.setdefault(question.groups.get("kind", ""), []).append(question)
    in_turn = chain.from_iterable(zip_longest(*kinds.values()))
    return [question for question in in_turn if question is not None][:limit]
