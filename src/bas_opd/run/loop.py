"""A run: steps in order, each on record, checkpoints on the way, the trained model at the end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError

from bas_opd.algorithm import train_step
from bas_opd.config.schema import Config
from bas_opd.data.lengths import check_prompts
from bas_opd.data.order import step_indices, steps_per_epoch
from bas_opd.data.records import PreparedSet
from bas_opd.errors import BasOpdError, CheckpointError, ConfigError, DataError, PreemptionError
from bas_opd.run.checkpoint import newest_whole, published, set_aside, sha256, sync
from bas_opd.run.checkpoint_writer import CheckpointWriter
from bas_opd.run.directory import RunDirectory
from bas_opd.run.ledger import step_event
from bas_opd.run.record import RecordWriter, holds_place, read_records
from bas_opd.run.state import TrainState
from bas_opd.run.stopping import StopFlag
from bas_opd.types import Hooks, PromptBatch, StepReport


class Progress(Protocol):
    """Where a run shows what it does."""

    def start(self, total_steps: int, *, done: int = 0) -> None: ...
    def step(self, event: Mapping[str, Any]) -> None: ...
    def message(self, text: str) -> None: ...
    def finish(self, totals: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What a finished run leaves: its directory, its trained model, its ledger."""

    directory: Path
    model: Path
    totals: dict[str, Any]


def train(config: Config, console: Progress, *, overwrite: bool = False) -> RunSummary:
    """Train to the last step, from the first or from where the same command stopped before."""
    data = PreparedSet.load(Path(config.data.path))
    total = planned_steps(config, data)
    _check_crops(data)
    stop = StopFlag()
    path = Path(config.run.output or "runs/run")
    with (
        _disk_failures_explained(path),
        RunDirectory.held(path) as run,
        stop.listening(),
    ):
        identity = run.identify(config, data, total)
        if not overwrite:
            run.compare(identity)
            if (totals := _finished_totals(run, total)) is not None:
                console.message(f"The run in {path} has finished; nothing is left to do.")
                return RunSummary(directory=path, model=run.model, totals=totals)
        hooks = Hooks(poll=stop.poll, notice=console.message)
        state = TrainState.build(config, hooks)
        identity |= state.identity()
        check_prompts(
            data.examples, state.model.processor.prompt_length, config.data.max_prompt_tokens
        )
        _check_disk(run.path, state.checkpoint_bytes)
        if overwrite:
            run.clear(inputs=[Path(config.model.path), data.folder])
        else:
            run.compare(identity)
        return _Run(config, console, data, run, state, stop, total).go(identity)


class _Run:
    """The steps of a run that holds its directory."""

    def __init__(
        self,
        config: Config,
        console: Progress,
        data: PreparedSet,
        run: RunDirectory,
        state: TrainState,
        stop: StopFlag,
        total: int,
    ) -> None:
        self.config, self.console, self.data, self.run = config, console, data, run
        self.state, self.stop, self.total = state, stop, total
        self.checkpoints = CheckpointWriter(
            run.checkpoints,
            keep=config.run.keep_checkpoints,
            keep_every=config.run.keep_every,
        )

    def go(self, identity: Mapping[str, Any]) -> RunSummary:
        """Take every step that is left, then save the model."""
        if not self.run.identity.exists():
            self.run.claim(identity)
        with self.checkpoints, self._records(identity) as self.records:
            self.run.claim(identity)
            self.console.start(self.total, done=self.state.step)
            while self.state.step < self.total:
                self._step()
            self._checkpoint()
            self.checkpoints.wait()
            model = _save_model(self.state, self.run)
            totals = self.state.ledger.totals()
            hashes = {file.name: sha256(file) for file in sorted(model.iterdir())}
            self.records.write(
                {"event": "finished", "steps": self.total, "totals": totals, "model": hashes}
            )
        self.console.finish(totals)
        self.console.message(
            f"The trained model is in {model}; every step is on record in {self.run.records}."
        )
        return RunSummary(directory=self.run.path, model=model, totals=totals)

    def _records(self, identity: Mapping[str, Any]) -> RecordWriter:
        """Restore the newest whole checkpoint, and cut the records back to it."""
        snapshot = next(newest_whole(self.run.checkpoints, self.console.message), None)
        if snapshot is None:
            return self._first_records(identity)
        if snapshot.step > self.total:
            raise ConfigError(
                f"The run in {self.run.path} has taken {snapshot.step} steps already, more than "
                f"the {self.total} asked for. Raise run.steps, or export what there is."
            )
        log = self.run.records
        if not holds_place(log, snapshot.data):
            raise CheckpointError(
                f"{log} no longer holds the records up to the checkpoint of step {snapshot.step}: "
                "they were cut or changed. Restore the file, or start anew with --overwrite."
            )
        self.state.restore(snapshot)
        set_aside(self.run.checkpoints, after=snapshot.step)
        writer = RecordWriter(log, keep_bytes=snapshot.data["records_bytes"])
        now = {key: identity[key] for key in ("steps", "config", "config_hash", "environment")}
        writer.write({"event": "resumed", "step": self.state.step, **now})
        self.console.message(f"Going on after step {self.state.step} of {self.total}.")
        return writer

    def _first_records(self, identity: Mapping[str, Any]) -> RecordWriter:
        """Begin the records, keeping aside any that were worth a checkpoint."""
        log, lost = self.run.records, published(self.run.checkpoints)
        if log.exists():
            self.console.message(f"No whole checkpoint in {self.run.path}: starting over.")
            steps = log.read_bytes().count(b'"event":"step"')
            if lost or steps > self.config.run.checkpoint_every:
                number = 1
                while (aside := log.with_name(f"records-before-{number}.jsonl")).exists():
                    number += 1
                self.console.message(f"The records so far are kept in {log.rename(aside)}.")
        set_aside(self.run.checkpoints, after=-1)
        writer = RecordWriter(log, keep_bytes=0 if log.exists() else None)
        opening = {**identity, "data": {"folder": str(self.data.folder), **identity["dataset"]}}
        writer.write({"event": "started", **opening})
        return writer

    def _step(self) -> None:
        state = self.state
        selector = state.stages.selector.state_dict()
        try:
            self.stop.poll()
            report = train_step(
                state.stages, self._batch(state.step), self.config.select.query_ratio
            )
        except BasOpdError as error:
            # Everything that raises these does so before the optimiser steps: what the step has
            # changed so far is the selector's normaliser and half a gradient.
            state.stages.learner.abandon()
            state.stages.selector.load_state_dict(selector)
            self._checkpoint()
            self.checkpoints.wait()
            raise self._stopped(error) from error
        self._record(report)
        is_hopeless = state.bad_steps >= self.config.run.max_bad_steps
        is_due = state.step % self.config.run.checkpoint_every == 0 and state.step < self.total
        if is_due or is_hopeless:
            self._checkpoint()
        if is_hopeless:
            self.checkpoints.wait()
            raise _hopeless(state, self.run)

    def _record(self, report: StepReport) -> None:
        state = self.state
        state.ledger.charge(report)
        event = step_event(
            report,
            decode=state.model.processor.decode,
            examples=self.config.run.examples_per_step,
            data_folder=self.data.folder,
        )
        self.records.write(event)
        self.console.step(event)
        state.step += 1
        was_skipped = bool(report.selection.rows) and not report.update.is_valid
        state.bad_steps = state.bad_steps + 1 if was_skipped else 0

    def _checkpoint(self) -> None:
        self.checkpoints.wait()  # One copy of the state in host memory at a time.
        snapshot = self.state.capture()
        self.checkpoints.submit(replace(snapshot, data={**snapshot.data, **self.records.place}))

    def _batch(self, step: int) -> PromptBatch:
        per_step, seed = self.config.rollout.prompts_per_step, self.config.run.seed
        rows = step_indices(len(self.data.examples), per_step, seed, step)
        return PromptBatch(step=step, examples=tuple(self.data.examples[row] for row in rows))

    def _stopped(self, error: BasOpdError) -> BasOpdError:
        if not isinstance(error, PreemptionError):
            return error
        return PreemptionError(
            f"Stopped by {error} after step {self.state.step} of {self.total}. A checkpoint is in "
            f"{self.run.checkpoints}; the same command goes on from it."
        )


@contextmanager
def _disk_failures_explained(path: Path) -> Iterator[None]:
    """Say of a disk that is full, read-only, gone or broken what it leaves of the run."""
    try:
        yield
    except (OSError, SafetensorError) as error:  # The second is what safetensors makes of a first.
        raise BasOpdError(
            f"The run in {path} cannot be written: {error}. Every checkpoint that was published "
            "is whole; once the disk is well, the same command goes on from the newest."
        ) from error


def _finished_totals(run: RunDirectory, total: int) -> dict[str, Any] | None:
    """Return the totals of a run that has taken all its steps, else nothing."""
    if not run.records.exists() or not run.model.is_dir():
        return None
    try:
        *_, last = read_records(run.records)
    except (DataError, ValueError):
        return None  # A line cut short by a kill; what was checkpointed tells the rest.
    is_done = last["event"] == "finished" and last["steps"] == total
    return last["totals"] if is_done else None


def planned_steps(config: Config, data: PreparedSet) -> int:
    """Return how many steps the settings ask for."""
    per_epoch = steps_per_epoch(len(data.examples), config.rollout.prompts_per_step)
    return config.run.steps or per_epoch * config.run.epochs


def _check_crops(data: PreparedSet) -> None:
    if not any(example.has_crop for example in data.examples):
        raise DataError(
            f"None of the {len(data.examples):,} examples in {data.folder} has a crop, so the "
            "teacher could never be asked. Prepare the data with crop boxes or crop images."
        )


def _check_disk(path: Path, needed: int) -> None:
    """Refuse a run whose first checkpoint could not be written."""
    free = shutil.disk_usage(path).free
    if free < needed:
        raise BasOpdError(
            f"A checkpoint of this run takes {needed / 1e9:,.1f} GB, but {path} has only "
            f"{free / 1e9:,.1f} GB free. Free some space, or choose another run.output; "
            "`bas-opd plan` says what the whole run needs."
        )


def _hopeless(state: TrainState, run: RunDirectory) -> BasOpdError:
    return BasOpdError(
        f"The loss or its gradient was not finite for {state.bad_steps} steps in a row, up to step "
        f"{state.step}. Each was skipped, so the weights are those of the last good step; they are "
        f"in {run.checkpoints}, and {run.records} names the rows. Try a lower optim.learning_rate, "
        "or model.precision=float32, in a new run.output."
    )


def _save_model(state: TrainState, run: RunDirectory) -> Path:
    """Write the student as a plain model folder, whole or not at all."""
    staging = run.path / "model.partial"
    for path in (staging, run.model):
        shutil.rmtree(path, ignore_errors=True)
    state.model.save(staging)
    for file in staging.iterdir():
        sync(file)
    os.replace(staging, run.model)
    sync(run.path)
    return run.model
