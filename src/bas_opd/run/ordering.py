"""Whether the examples of a run are those that its seed draws from its data. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bas_opd.config.schema import Config
from bas_opd.data.order import step_indices
from bas_opd.data.records import PreparedSet
from bas_opd.errors import DataError
from bas_opd.run.record import QueryRecord, Started


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


def order_problems(
    steps: Sequence[QueryRecord], config: Config, data: PreparedSet
) -> Iterator[str]:
    """Every step has the examples of its place in the order, and candidates have a crop."""
    per_step, seed = config.rollout.prompts_per_step, config.run.seed
    for step in steps:
        batch = [data.examples[i] for i in step_indices(len(data), per_step, seed, step.step)]
        if step.examples != [example.id for example in batch]:
            yield f"step {step.step}: examples are not those that the seed draws from the data."
            continue
        possible = {
            row
            for row, tokens in enumerate(step.response_tokens)
            if tokens and batch[row // step.per_prompt].has_crop
        }
        if set(step.candidates) != possible:
            yield f"step {step.step}: candidates are not the rows that have a crop and a response."
