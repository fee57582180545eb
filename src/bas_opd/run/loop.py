"""A run: steps in order, each on record, checkpoints on the way, the trained model at the end."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from safetensors import SafetensorError

from bas_opd import __version__, disk
from bas_opd.compute.memory import ran_out
from bas_opd.config.loading import config_hash, dump
from bas_opd.config.schema import Config
from bas_opd.data.order import PromptStream
from bas_opd.data.records import PreparedSet
from bas_opd.errors import (
    BasOpdError,
    CheckpointError,
    ConfigError,
    DataError,
    OutOfMemory,
    PreemptionError,
    RunDirectoryError,
    explain_failure,
)
from bas_opd.files import file_hashes, once, sync_tree
from bas_opd.methods.reward import Judge
from bas_opd.model.folder import local_folder, model_hashes
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.run.checkpoint import CheckpointWriter, newest_intact, published, set_aside
from bas_opd.run.directory import SCHEMA_VERSION, RunDirectory
from bas_opd.run.events import step_event
from bas_opd.run.footprint import check_host, measure
from bas_opd.run.forecast import check_lengths, check_run, never_ranks, seldom_asks
from bas_opd.run.history import collect_outline, read_outline
from bas_opd.run.journal import CallJournal, with_repeated
from bas_opd.run.ledger import Ledger
from bas_opd.run.progress import RunProgress
from bas_opd.run.record import EvaluationRecord, parse_step
from bas_opd.run.record_file import RecordWriter, holds_place
from bas_opd.run.served import check_served
from bas_opd.run.state import (
    ROUNDING,
    TrainState,
    build_method,
    environment,
    load_processors,
    model_identity,
    prompt_lengths,
)
from bas_opd.run.stopping import StopFlag
from bas_opd.types import Hooks, StepReport


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What a finished run leaves: its directory, its trained model, its ledger."""

    directory: Path
    model: Path
    totals: dict[str, Any]


Evaluate = Callable[[VisionLanguageModel, int, Hooks], EvaluationRecord]
"""(model, steps taken, hooks) -> its accuracy on held-out questions; changes nothing."""


def train(
    config: Config,
    console: RunProgress,
    *,
    overwrite: bool = False,
    accept_changes: bool = False,
    evaluate: Evaluate | None = None,
    judge: Judge | None = None,
) -> RunSummary:
    """Train to the last step, from the first or from the newest checkpoint of the same run.

    `overwrite` replaces a run of other settings or other data; the same run is resumed, so that a
    scheduler may repeat the command.
    `evaluate` is called every `eval.every` steps; `evaluate/during_training.py` makes it. `judge`
    decides what no rule can read, for methods that grade responses; `evaluate/rewarding.py` makes
    it.
    """
    if config.eval.every and evaluate is None:
        raise ConfigError(
            f"eval.every is {config.eval.every}, but this command does not evaluate during "
            "training. Use `bas-opd train`, or set eval.every=0."
        )
    if (judge is None) != (config.judge.url is None):
        raise ConfigError(
            "A run has a judge if judge.url names one, and only then. Use `bas-opd train`, or set "
            "judge.url to the judge that is given."
        )
    data = PreparedSet.load(Path(config.data.path))
    batches = check_run(config, data)
    total = len(batches)
    stop = StopFlag()
    path = Path(config.run.output or "runs/run")
    with (
        _full_memory_explained(path),
        _disk_failures_explained(path),
        RunDirectory.held(path) as run,
        stop.listening(),
    ):
        identity = identity_of(config, data, total)
        replaces = overwrite and run.is_another(identity)
        if not replaces:
            run.compare(identity)
            if overwrite and run.identity.exists():
                console.message(
                    f"The run in {path} is this one, so nothing of it is deleted: it is resumed. "
                    "To start it over, remove its directory."
                )
            if (totals := _finished_totals(run, total, console.message)) is not None:
                console.message(f"The run in {path} has finished; nothing is left to do.")
                return RunSummary(directory=path, model=run.model, totals=totals)
        journal = CallJournal(run.calls, check=run.check_held)
        hooks = Hooks(poll=stop.poll, notice=console.message, asked=journal.write)
        for notice in (seldom_asks(config, batches), never_ranks(config, batches)):
            if notice:
                console.message(notice)
        if config.teacher.server is not None:
            check_served(config, load_processors(config)[0], data)
        console.message(f"Loading the model {config.model.path}.")
        base = model_hashes(local_folder(config.model.path), memory=run.hashes)
        other = config.teacher.path and local_folder(config.teacher.path)
        teacher = model_hashes(other, memory=run.hashes) if other else {}
        files = run.check_files(base, data, accept=accept_changes, is_new=replaces, teacher=teacher)
        identity["dataset"]["pictures"] = files.pop("pictures")
        identity |= files
        if changed := identity.get("accepted_changes"):
            console.message(f"Changed files are accepted, on record: {', '.join(changed)}.")
        if config.optim.offload:
            check_host(measure(config))
        method = build_method(config, hooks, judge=judge, run=run)
        identity |= model_identity(method.model)
        once(
            run.hashes,
            {
                "prompts": [config.method.name, config.data.max_prompt_tokens, __version__],
                "budget": [config.select.model_dump(mode="json"), config.rollout.model_dump()],
                "data": identity["dataset"],
                "model": [config.model.model_dump(mode="json"), base],
                **({"teacher": teacher} if teacher else {}),
            },
            lambda: check_lengths(config, data, *prompt_lengths(config)),
        )
        prompts = PromptStream(
            data.examples, per_step=config.rollout.prompts_per_step, seed=config.run.seed
        )
        state = TrainState(method=method, prompts=prompts)
        _check_disk(run.path, state.checkpoint_bytes)
        run.check_held()
        if replaces:
            inputs = [config.model.path, *filter(None, [config.teacher.path]), data.folder]
            run.clear(inputs=[Path(each) for each in inputs])
        else:
            run.compare(identity)
        with closing(method):
            steps = _Run(config, console, data, run, state, stop, total, evaluate, journal)
            return steps.go(identity)


class _Run:
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
    ) -> None:
        self.config, self.console, self.data, self.run = config, console, data, run
        self.state, self.stop, self.total, self.evaluate = state, stop, total, evaluate
        self.journal = journal
        self.hooks = Hooks(poll=stop.poll, notice=console.message)
        self.checkpointed: int | None = None
        """The step of the last checkpoint."""
        self.checkpoints = CheckpointWriter(
            run.checkpoints,
            keep=config.run.keep_checkpoints,
            keep_every=config.run.keep_every,
            check=run.check_held,
        )

    def go(self, identity: Mapping[str, Any]) -> RunSummary:
        """Take every step that is left, then save the model."""
        self.run_id: str = identity["run_id"]
        if not self.run.identity.exists():
            self.run.claim(identity)
        with self.checkpoints, self._records(identity) as self.records:
            self.run.claim(identity)
            self.journal.begin(self.state.ledger.calls)
            self.console.start(self.total, done=self.state.step)
            self._evaluate()
            while self.state.step < self.total:
                self._step()
            self._checkpoint()
            self.checkpoints.wait()
            model = _save_model(self.state, self.run)
            totals = self.state.ledger.totals()
            files = {file.name: file for file in sorted(model.iterdir())}
            hashes = file_hashes(files, memory=self.run.hashes)
            self.records.write(
                {"event": "finished", "steps": self.total, "totals": totals, "model": hashes}
            )
        self.console.finish(with_repeated(totals, self.run.calls))
        self.console.message(
            f"The trained model is in {model}; every step is on record in {self.run.records}."
        )
        return RunSummary(directory=self.run.path, model=model, totals=totals)

    def _records(self, identity: Mapping[str, Any]) -> RecordWriter:
        """Restore the newest intact checkpoint, and truncate the records to it."""
        snapshot = next(newest_intact(self.run.checkpoints, self.console.message), None)
        if snapshot is None:
            return self._first_records(identity)
        if snapshot.step > self.total:
            raise ConfigError(
                f"The run in {self.run.path} has taken {snapshot.step} steps already, more than "
                f"the {self.total} asked for. Raise run.steps, or export what there is."
            )
        log = self.run.records
        own, other = identity["run_id"], snapshot.data.get("run_id", "")
        if other and other != own:
            raise CheckpointError(
                f"The checkpoint of step {snapshot.step} in {self.run.checkpoints} is of another "
                f"run ({other[:12]}, not {own[:12]}). Remove it, or restore those of this run."
            )
        if not holds_place(log, snapshot.data):
            raise CheckpointError(
                f"{log} no longer holds the records up to the checkpoint of step {snapshot.step}: "
                "they were truncated or changed. Restore the file, or start over in another "
                "run.output."
            )
        self.state.restore(snapshot)
        self.run.check_held()
        set_aside(self.run.checkpoints, after=snapshot.step)
        writer = RecordWriter(
            log,
            keep_bytes=snapshot.data["records_bytes"],
            run_id=own,
            check=self.run.check_held,
        )
        if Ledger.carried_on(snapshot.data["ledger"]) is None:
            # Checkpoints of version 0.1 lack some totals; the records have all.
            self.state.ledger = Ledger.of(read_outline(self.run.path).read_steps(_refuse))
        kept = ("steps", "config", "config_hash", "environment", "accepted_changes")
        now = {key: identity[key] for key in kept if key in identity}
        writer.write({"event": "resumed", "step": self.state.step, **now})
        self.console.message(f"Resuming after step {self.state.step} of {self.total}.")
        self._name_other_machine(identity["environment"])
        return writer

    def _name_other_machine(self, now: Mapping[str, Any]) -> None:
        """Say what rounds differently than before; the numbers agree within rounding only."""
        before = self.run.read_identity().environment
        other = [
            f"{key} was {before[key]}, is now {now[key]}"
            for key in ROUNDING
            if key in before and before[key] != now[key]
        ]
        if other:
            self.console.message(
                f"Another machine than before ({'; '.join(other)}): from here on the numbers agree "
                "with those of an undisturbed run within rounding, not byte for byte."
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
            self.stop.poll()
            report = state.method.step(state.prompts)
        except RunDirectoryError:
            raise  # Nothing more may be written there.
        except BasOpdError as error:
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
        try:
            found = self.evaluate(state.method.model, state.step, self.hooks)
        except BasOpdError as error:
            self._checkpoint()
            self.checkpoints.wait()
            raise self._stopped(error) from error
        self.records.write({"event": "evaluation", **found.model_dump()})
        self.console.evaluated(found)
        state.evaluation = found
        if found.is_better(state.best):
            state.best = found
            self._checkpoint()

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
        self.records.write(event)
        self.console.step(step)
        state.step += 1
        state.bad_steps = state.bad_steps + 1 if report.is_skipped else 0

    def _checkpoint(self) -> None:
        """Write a checkpoint of this step, if none was written yet."""
        if self.checkpointed == self.state.step:
            return
        self.checkpointed = self.state.step
        self.checkpoints.wait()  # One copy of the state in host memory at a time.
        snapshot = self.state.capture()
        self.checkpoints.submit(
            replace(snapshot, data={**snapshot.data, **self.records.place, "run_id": self.run_id}),
            best=None if self.state.best is None else self.state.best.step,
        )

    def _stopped(self, error: BasOpdError) -> BasOpdError:
        if not isinstance(error, PreemptionError):
            return error
        return PreemptionError(
            f"Stopped by {error} after step {self.state.step} of {self.total}. A checkpoint is in "
            f"{self.run.checkpoints}; rerun the same command to resume."
        )


@contextmanager
def _disk_failures_explained(path: Path) -> Iterator[None]:
    """Turn a failure of a file into a sentence that says what is left of the run."""
    try:
        yield
    except BasOpdError:  # One of a server is an OSError too.
        raise
    except (OSError, SafetensorError) as error:  # The second is what safetensors makes of a first.
        what = explain_failure(error) if isinstance(error, OSError) else f"{error}."
        left = "Its published checkpoints are as they were; then rerun the same command to resume."
        has_any = bool(published(RunDirectory(path=path).checkpoints))
        raise BasOpdError(
            f"The run in {path} cannot go on. {what}{f' {left}' if has_any else ''}"
        ) from error


@contextmanager
def _full_memory_explained(path: Path) -> Iterator[None]:
    """Turn memory that ran out where no smaller batch helps into a sentence.

    The step in progress may be half done, so no checkpoint is made of it.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        raise OutOfMemory(
            f"The run in {path} ran out of memory where no smaller batch helps, as in the "
            f"optimizer, the EMA teacher or a checkpoint: {error} Its published checkpoints are as "
            "they were; with more memory, with optim.offload=true, or with lora.rank in another "
            "run.output, rerun the command."
        ) from error


def identity_of(config: Config, data: PreparedSet, steps: int) -> dict[str, Any]:
    """Return which run this is, as far as it is known before its model is loaded."""
    return {
        "schema_version": SCHEMA_VERSION,
        "config": dump(config),
        "config_hash": config_hash(config),
        "dataset": {"fingerprint": data.fingerprint, "examples": len(data.examples)},
        "environment": environment(),
        "steps": steps,
    }


def _finished_totals(
    run: RunDirectory, total: int, warn: Callable[[str], None]
) -> dict[str, Any] | None:
    """Return the totals of a run that has taken all its steps and has its model, else nothing."""
    if not run.records.exists() or not run.model.is_dir():
        return None
    outline = collect_outline(run.path)
    finished = outline.finished
    if outline.problems or outline.is_cut or finished is None:
        return None  # What was checkpointed decides where the run resumes.
    if finished.steps != total:
        return None
    files = {path.name: path for path in run.model.iterdir()}
    if file_hashes(files, memory=run.hashes) != finished.model:
        warn(f"{run.model} is not the model on record: it is written again.")
        return None
    ledger = Ledger.carried_on(finished.totals) or Ledger.of(outline.read_steps(_refuse))
    return ledger.totals()


def _refuse(problem: str) -> NoReturn:
    raise DataError(f"A step on record cannot be read: {problem} Restore the records.")


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
        state.method.model.save(staging)
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
