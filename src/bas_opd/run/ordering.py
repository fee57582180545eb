"""Whether the examples of a run are those that its seed draws from its data. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bas_opd.answers import answer_key
from bas_opd.config.schema import Config
from bas_opd.data.order import step_indices
from bas_opd.data.records import PreparedSet, grades_by_last_word
from bas_opd.errors import DataError
from bas_opd.run.forecast import has_view
from bas_opd.run.record import PolicyRecord, QueryRecord, Started, StepRecord
from bas_opd.types import Example


def training_data(started: Started | None, folder: Path | None) -> PreparedSet | None:
    """Return the data of a run, where it is still as it was; a folder that was named must be it."""
    if started is None:
        return None
    try:
        data = PreparedSet.load(folder or Path(started.data.folder))
    except DataError:
        if folder is not None:
            raise
        return None
    if data.fingerprint == started.data.fingerprint:
        return data
    if folder is not None:
        raise DataError(f"{folder} is not the set that the run was trained on. Name that one.")
    return None


def order_check(config: Config, data: PreparedSet) -> Callable[[StepRecord], Iterator[str]]:
    """Return the check that a step has the examples of its place in the order.

    Candidates must have a teacher's view. A step that took several batches moves the place of those
    after it.
    """
    per_step, seed = config.rollout.prompts_per_step, config.run.seed
    can_learn = _can_learn(config, grades_by_last_word(data.source))
    place = 0

    def check(step: StepRecord) -> Iterator[str]:
        nonlocal place
        batches = [
            [data.examples[i] for i in step_indices(len(data), per_step, seed, place + batch)]
            for batch in range(step.batches)
        ]
        place += step.batches
        if not isinstance(step, QueryRecord):
            batches = [[each for each in batch if can_learn(each)] for batch in batches]
        examples = [example for batch in batches for example in batch]
        if step.examples != [example.id for example in examples]:
            yield "examples are not those that the seed draws from the data."
        elif isinstance(step, PolicyRecord) and step.rounds != [len(each) for each in batches]:
            yield f"rounds of {step.rounds} prompts are not those of the data."
        elif isinstance(step, QueryRecord):
            possible = {
                row
                for row, tokens in enumerate(step.response_tokens)
                if tokens and can_learn(examples[row // step.per_prompt])
            }
            if set(step.candidates) != possible:
                view = "an answer and " if config.method.name == "opsd" else ""
                view = "a crop and " if config.needs_crops else view
                yield f"candidates are not the rows that have {view}a response."

    return check


def _can_learn(config: Config, by_last_word: bool) -> Callable[[Example], bool]:
    """Return which examples the method learns from."""

    def has_key(example: Example) -> bool:
        return answer_key(example.question, example.answer, by_last_word=by_last_word) is not None

    return {
        "bas-opd": partial(has_view, config),
        "opsd": partial(has_view, config),
        "grpo": has_key,
        "dapo": has_key,
        "sft": lambda example: example.has_crop and (config.sft.keep == "all" or has_key(example)),
    }[config.method.name]
