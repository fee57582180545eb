"""A run: steps in order, each on record as soon as it is done, and the trained model at the end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bas_opd.algorithm import train_step
from bas_opd.config.loading import dump
from bas_opd.config.schema import Config
from bas_opd.data.lengths import check_prompts
from bas_opd.data.order import step_indices, steps_per_epoch
from bas_opd.data.records import PreparedSet
from bas_opd.errors import BasOpdError, DataError, RunDirectoryError
from bas_opd.ledger import step_event
from bas_opd.runtime.records import RecordWriter
from bas_opd.state import TrainState
from bas_opd.types import PromptBatch


class Progress(Protocol):
    """Where a run shows what it does."""

    def start(self, total_steps: int) -> None: ...
    def step(self, event: Mapping[str, Any]) -> None: ...
    def message(self, text: str) -> None: ...
    def finish(self, totals: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What a finished run leaves: its directory, its trained model, its ledger."""

    directory: Path
    model: Path
    totals: dict[str, Any]


def train(config: Config, console: Progress) -> RunSummary:
    """Train from the first step to the last."""
    data = PreparedSet.load(Path(config.data.path))
    total = _total_steps(config, data)
    _check_crops(config, data)
    directory = _free_directory(config)
    state = TrainState.build(config)
    check_prompts(data.examples, state.model.processor.prompt_length, config.data.max_prompt_tokens)
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "records.jsonl"
    with RecordWriter(log) as records:
        records.write(_opening(config, data, total))
        console.start(total)
        bad_steps = 0
        while state.step < total:
            report = train_step(
                state.stages, _batch(config, data, state.step), config.select.query_ratio
            )
            state.ledger.charge(report)
            event = step_event(
                report,
                decode=state.model.processor.decode,
                examples=config.run.examples_per_step,
                data_folder=data.folder,
            )
            records.write(event)
            console.step(event)
            state.step += 1
            was_skipped = bool(report.selection.rows) and not report.update.is_valid
            bad_steps = bad_steps + 1 if was_skipped else 0
            if bad_steps >= config.run.max_bad_steps:
                raise _hopeless(bad_steps, state.step, _save_model(state, directory), log)
        model = _save_model(state, directory)
        totals = state.ledger.totals()
        records.write({"event": "finished", "steps": state.step, "totals": totals})
    console.finish(totals)
    console.message(f"The trained model is in {model}; every step is on record in {log}.")
    return RunSummary(directory=directory, model=model, totals=totals)


def _total_steps(config: Config, data: PreparedSet) -> int:
    per_epoch = steps_per_epoch(len(data.examples), config.rollout.prompts_per_step)
    return config.run.steps or per_epoch * config.run.epochs


def _batch(config: Config, data: PreparedSet, step: int) -> PromptBatch:
    rows = step_indices(len(data.examples), config.rollout.prompts_per_step, config.run.seed, step)
    return PromptBatch(step=step, examples=tuple(data.examples[row] for row in rows))


def _check_crops(config: Config, data: PreparedSet) -> None:
    if not any(example.has_crop for example in data.examples):
        raise DataError(
            f"None of the {len(data.examples):,} examples in {data.folder} has a crop, so the "
            "teacher could never be asked. Prepare the data with crop boxes or crop images."
        )


def _free_directory(config: Config) -> Path:
    directory = Path(config.run.output or "runs/run")
    if directory.is_file() or (directory.exists() and any(directory.iterdir())):
        raise RunDirectoryError(
            f"{directory} already holds something, and nothing in it will be overwritten. "
            "Choose another directory with run.output=DIRECTORY, or remove this one yourself."
        )
    return directory


def _opening(config: Config, data: PreparedSet, total: int) -> dict[str, Any]:
    return {
        "event": "started",
        "config": dump(config),
        "data": {"folder": str(data.folder), "fingerprint": data.fingerprint},
        "steps": total,
    }


def _hopeless(bad_steps: int, step: int, model: Path, log: Path) -> BasOpdError:
    return BasOpdError(
        f"The loss or its gradient was not finite for {bad_steps} steps in a row, up to step "
        f"{step}. Each was skipped; the weights of the last good step are in {model}, and {log} "
        "names the rows. Lower optim.learning_rate, or try model.precision=float32."
    )


def _save_model(state: TrainState, directory: Path) -> Path:
    """Write the student as a plain model folder, whole or not at all."""
    target, staging = directory / "model", directory / "model.partial"
    shutil.rmtree(staging, ignore_errors=True)
    state.model.save(staging)
    os.replace(staging, target)
    return target
