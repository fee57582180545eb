"""The steps of a run: restored where it stopped, each on record, checkpoints on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from bas_opd import disk
from bas_opd.compute.world import World
from bas_opd.config.schema import Config
from bas_opd.data.records import PreparedSet
from bas_opd.errors import (
    BasOpdError,
    CheckpointError,
    ConfigError,
    OutOfMemory,
    PreemptionError,
    RankError,
    RunDirectoryError,
)
from bas_opd.files import file_hashes, sync_tree
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.run.checkpoint import (
    CheckpointWriter,
    Snapshot,
    intact_paths,
    load_checkpoint,
    published,
    set_aside,
)
from bas_opd.run.directory import RunDirectory
from bas_opd.run.events import step_event
from bas_opd.run.history import read_outline, refuse_step
from bas_opd.run.journal import CallJournal, with_repeated
from bas_opd.run.ledger import Ledger
from bas_opd.run.progress import RunProgress
from bas_opd.run.record import EvaluationRecord, QueryRecord, StepRecord, parse_step
from bas_opd.run.record_file import RecordWriter, holds_place
from bas_opd.run.state import ROUNDING, TrainState
from bas_opd.run.stopping import StopFlag
from bas_opd.types import Hooks, StepReport, TeacherSupport


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What a finished run leaves: its directory, its trained model, its ledger."""

    directory: Path
    model: Path
    totals: dict[str, Any]


Evaluate = Callable[[VisionLanguageModel, int, Hooks], EvaluationRecord]
"""(model, steps taken, hooks) -> its accuracy on held-out questions; changes nothing."""


class RunSteps:
    """The steps of a run that holds its directory."""

    def __init__(
        self,
        config: Config,
        console: RunProgress,
        data: PreparedSet,
        run: RunDirectory,
        state: TrainState,
        stop: StopFlag,
        total: int,
        evaluate: Evaluate | None,
        journal: CallJournal,
        world: World,
        checkpoints: CheckpointWriter,
    ) -> None:
        self.config, self.console, self.data, self.run = config, console, data, run
        self.state, self.stop, self.total, self.evaluate = state, stop, total, evaluate
        self.journal, self.world, self.checkpoints = journal, world, checkpoints
        self.records: RecordWriter | None = None
        """On the leader."""
        self.hooks = Hooks(poll=stop.poll, notice=console.message)
        self.checkpointed: int | None = None
        """The step of the last checkpoint."""
        self._support: TeacherSupport | None = None
        """At whose tokens a served teacher was last compared."""

    def go(self, identity: Mapping[str, Any]) -> RunSummary:
        """Take every step that is left, then save the model."""
        self.run_id: str = identity["run_id"]
        self.world.led(lambda: self.run.identity.exists() or self.run.claim(identity))
        with self.checkpoints, ExitStack() as held:
            self._begin(identity, held)
            self.console.start(self.total, done=self.state.step)
            self._evaluate()
            while self.state.step < self.total:
                self._step()
            self._checkpoint()
            self.checkpoints.wait()
            model, totals = self._save_model(), self.state.ledger.totals()
            self.world.led(lambda: self._finish(model, totals))
        self.console.finish(with_repeated(totals, self.run.calls))
        self.console.message(
            f"The trained model is in {model}; every step is on record in {self.run.records}."
        )
        return RunSummary(directory=self.run.path, model=model, totals=totals)

    def _save_model(self) -> Path:
        weights = self.state.method.model.whole_weights()
        return self.world.led(lambda: _save_model(self.state, self.run, weights))

    def _finish(self, model: Path, totals: Mapping[str, Any]) -> None:
        """Put the end of the run on record."""
        files = {file.name: file for file in sorted(model.iterdir())}
        hashes = file_hashes(files, memory=self.run.hashes)
        self._write({"event": "finished", "steps": self.total, "totals": totals, "model": hashes})

    def _write(self, event: Mapping[str, Any]) -> None:
        if self.records is not None:
            self.records.write(event)

    def _begin(self, identity: Mapping[str, Any], held: ExitStack) -> None:
        """Restore the newest intact checkpoint, and open the records where it left them."""
        world, folder = self.world, self.run.checkpoints
        path = world.led(lambda: next(intact_paths(folder, self.console.message), None))
        snapshot = None if path is None else world.each(lambda: self._restored(path, identity))

        def open_records() -> None:
            if snapshot is None:
                writer = self._first_records(identity)
            else:
                writer = self._truncated_records(identity, snapshot)
            self.records = held.enter_context(writer)
            self.run.claim(identity)
            self.journal.begin(self.state.ledger.calls)

        world.led(open_records)

    def _restored(self, path: Path, identity: Mapping[str, Any]) -> Snapshot:
        """Restore a checkpoint, and return it."""
        shards = self.state.method.model.shards
        is_spread = (lambda _: False) if shards is None else shards.is_spread
        snapshot = load_checkpoint(path, self.world, is_spread)
        if snapshot.step > self.total:
            raise ConfigError(
                f"The run in {self.run.path} has taken {snapshot.step} steps already, more than "
                f"the {self.total} asked for. Raise run.steps, or export what there is."
            )
        own, other = identity["run_id"], snapshot.data.get("run_id", "")
        if other and other != own:
            raise CheckpointError(
                f"The checkpoint of step {snapshot.step} in {self.run.checkpoints} is of another "
                f"run ({other[:12]}, not {own[:12]}). Remove it, or restore those of this run."
            )
        log = self.run.records
        if not holds_place(log, snapshot.data):
            raise CheckpointError(
                f"{log} no longer holds the records up to the checkpoint of step {snapshot.step}: "
                "they were truncated or changed. Restore the file, or start over in another "
                "run.output."
            )
        self.state.restore(snapshot)
        return snapshot

    def _truncated_records(self, identity: Mapping[str, Any], snapshot: Snapshot) -> RecordWriter:
        """Truncate the records to a checkpoint."""
        self.run.check_held()
        set_aside(self.run.checkpoints, after=snapshot.step)
        writer = RecordWriter(
            self.run.records,
            keep_bytes=snapshot.data["records_bytes"],
            run_id=self.run_id,
            check=self.run.check_held,
        )
        if Ledger.carried_on(snapshot.data["ledger"]) is None:
            # Checkpoints of version 0.1 lack some totals; the records have all.
            self.state.ledger = Ledger.of(read_outline(self.run.path).read_steps(refuse_step))
        kept = ("steps", "config", "config_hash", "environment", "accepted_changes")
        now = {key: identity[key] for key in kept if key in identity}
        writer.write({"event": "resumed", "step": self.state.step, **now})
        self.console.message(f"Resuming after step {self.state.step} of {self.total}.")
        self._name_other_machine(identity["environment"])
        if self.config.teacher.server is not None and self.config.teacher.support == "auto":
            for step in read_outline(self.run.path).read_steps(refuse_step):
                self._name_other_support(step)
        precision = self.state.method.model.precision
        if self.config.rollout.engine == "vllm" and precision.itemsize < 4:
            self.console.message(
                "vLLM computes in bfloat16: from here on it may draw other tokens than in an "
                "undisturbed run, and rows may be selected otherwise. What is on record stays."
            )
        return writer

    def _name_other_machine(self, now: Mapping[str, Any]) -> None:
        """Say what rounds differently than before; the numbers agree within rounding only."""
        before = self.run.read_identity().environment
        other = [
            f"{key} was {before[key]}, is now {now.get(key)}"
            for key in ROUNDING
            if key in before and before[key] != now.get(key)
        ]
        ranks = [machine.get("processes", 1) for machine in (before, now)]
        if ranks[0] != ranks[1]:
            other.append(f"there were {ranks[0]} processes, there are now {ranks[1]}")
        if other:
            self.console.message(
                f"Another machine than before ({'; '.join(other)}): from here on the numbers agree "
                "with those of an undisturbed run within rounding, not byte for byte."
            )

    def _name_other_support(self, step: StepRecord) -> None:
        """Say that a served teacher is compared at other tokens than in the step before."""
        if not isinstance(step, QueryRecord) or step.support is None:
            return
        before, self._support = self._support, step.support
        if before not in (None, step.support) and step.step >= self.state.step:
            self.console.message(
                f"The teacher is now compared at the likeliest tokens of the {step.support}, up to "
                f"step {step.step - 1} at those of the {before}: what its server can do has "
                "changed, and teacher.support is auto. The record of each step has it."
            )

    def _first_records(self, identity: Mapping[str, Any]) -> RecordWriter:
        """Start the records; keep earlier ones if they were worth a checkpoint."""
        self.run.check_held()
        log, lost = self.run.records, published(self.run.checkpoints)
        if log.exists():
            self.console.message(f"No intact checkpoint in {self.run.path}: starting over.")
            with log.open("rb") as lines:
                steps = sum(b'"event":"step"' in line for line in lines)
            if lost or steps > self.config.run.checkpoint_every:
                number = 1
                while (aside := log.with_name(f"records-before-{number}.jsonl")).exists():
                    number += 1
                disk.rename(log, aside)
                self.console.message(f"The records so far are kept in {aside}.")
        set_aside(self.run.checkpoints, after=-1)
        writer = RecordWriter(
            log,
            keep_bytes=0 if log.exists() else None,
            run_id=self.run_id,
            check=self.run.check_held,
        )
        source = {"folder": str(self.data.folder), "source": self.data.source}
        opening = {**identity, "data": {**source, **identity["dataset"]}}
        writer.write({"event": "started", **opening, "has_journal": True})
        return writer

    def _step(self) -> None:
        state = self.state
        cursor = state.prompts.cursor
        state.prompts.begin(state.step)
        try:
            self.world.together(self.stop.poll)
            report = state.method.step(state.prompts)
        except (RunDirectoryError, RankError):
            raise  # Nothing more may be written there, or not all ranks are there to write it.
        except BasOpdError as error:
            if self._is_alone_with(error):
                raise
            state.prompts.cursor = cursor
            if state.method.rollback():
                self._checkpoint()
            self.checkpoints.wait()
            raise self._stopped(error) from error
        self._record(report)
        self._evaluate()
        is_hopeless = state.bad_steps >= self.config.run.max_bad_steps
        is_due = state.step % self.config.run.checkpoint_every == 0 and state.step < self.total
        if is_due or is_hopeless:
            self._checkpoint()
        if is_hopeless:
            self.checkpoints.wait()
            raise _hopeless(state, self.run)

    def _evaluate(self) -> None:
        """Evaluate the model if that is due and not on record yet; keep the best checkpoint.

        A run that is stopped meanwhile evaluates when it is resumed.
        """
        state, every = self.state, self.config.eval.every
        is_due = every and (state.step % every == 0 or state.step == self.total)
        is_done = state.evaluation is not None and state.evaluation.step == state.step
        if self.evaluate is None or not is_due or is_done:
            return
        evaluate, model = self.evaluate, state.method.model
        try:
            # On every rank, so that none waits longer than for another step; the leader's counts.
            with model.gathered():
                found = self.world.together(lambda: evaluate(model, state.step, self.hooks))[0]
        except RankError:
            raise
        except BasOpdError as error:
            if self._is_alone_with(error):
                raise
            self._checkpoint()
            self.checkpoints.wait()
            raise self._stopped(error) from error
        self.world.led(lambda: self._write({"event": "evaluation", **found.model_dump()}))
        self.console.evaluated(found)
        state.evaluation = found
        if found.is_better(state.best):
            state.best = found
            self._checkpoint()

    def _is_alone_with(self, error: BasOpdError) -> bool:
        """Return whether other ranks go on without this error; they would write no checkpoint."""
        is_shared = error.is_told or isinstance(error, OutOfMemory)  # All shrink their batches.
        return self.world.size > 1 and not is_shared

    def _record(self, report: StepReport) -> None:
        state = self.state
        event = step_event(
            report,
            decode=state.method.model.processor.decode,
            examples=self.config.run.examples_per_step,
            data_folder=self.data.folder,
        )
        step = parse_step(event)
        state.ledger.charge(step)
        self.world.led(lambda: self._write(event))
        self._name_other_support(step)
        self.console.step(step)
        state.step += 1
        state.bad_steps = state.bad_steps + 1 if report.is_skipped else 0

    def _checkpoint(self) -> None:
        """Write a checkpoint of this step, if none was written yet."""
        if self.checkpointed == self.state.step:
            return
        self.checkpointed = self.state.step
        self.checkpoints.wait()  # One copy of the weights in host memory at a time.
        snapshot = self.state.capture()
        place = {} if self.records is None else self.records.place
        self.checkpoints.submit(
            replace(snapshot, data={**snapshot.data, **place, "run_id": self.run_id}),
            best=None if self.state.best is None else self.state.best.step,
        )

    def _stopped(self, error: BasOpdError) -> BasOpdError:
        if not isinstance(error, PreemptionError):
            return error
        stopped = PreemptionError(
            f"Stopped by {error} after step {self.state.step} of {self.total}. A checkpoint is in "
            f"{self.run.checkpoints}; rerun the same command to resume."
        )
        stopped.is_told = error.is_told
        return stopped


def _hopeless(state: TrainState, run: RunDirectory) -> BasOpdError:
    return BasOpdError(
        f"The loss or its gradient was not finite for {state.bad_steps} steps in a row, up to step "
        f"{state.step}. Each was skipped, so the weights are those of the last good step; they are "
        f"in {run.checkpoints}, and {run.records} names the rows. Try a lower optim.learning_rate, "
        "or model.precision=float32, in a new run.output."
    )


def _save_model(
    state: TrainState, run: RunDirectory, weights: Mapping[str, Tensor] | None = None
) -> Path:
    """Write the student as a plain model folder, complete or not at all.

    The model of a run that was prolonged stays until the new one is on disk.
    """
    run.check_held()
    staging, old = run.path / "model.partial", run.path / "model.old"
    for leftover in (staging, old):
        if leftover.exists():
            disk.remove_tree(leftover)
    try:
        disk.make_folder(staging)
        state.method.model.save(staging, weights)
        sync_tree(staging)
        run.check_held()
        if run.model.exists():
            disk.rename(run.model, old)
        disk.replace(staging, run.model)
    except BaseException:
        disk.remove_tree(staging, ignore_errors=True)
        if old.exists() and not run.model.exists():
            disk.rename(old, run.model)
        raise
    disk.sync(run.path)
    disk.remove_tree(old, ignore_errors=True)
    return run.model
