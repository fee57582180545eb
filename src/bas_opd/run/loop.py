"""A run: steps in order, each on record, checkpoints on the way, the trained model at the end."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from safetensors import SafetensorError
from torch import Tensor

from bas_opd import __version__, disk
from bas_opd.compute.memory import ran_out
from bas_opd.compute.world import World
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
    RankError,
    RunDirectoryError,
    explain_failure,
)
from bas_opd.files import file_hashes, once, sync_tree
from bas_opd.methods.reward import Judge
from bas_opd.model.folder import local_folder, model_hashes
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.run.checkpoint import (
    CheckpointWriter,
    Snapshot,
    intact_paths,
    load_checkpoint,
    published,
    set_aside,
)
from bas_opd.run.directory import SCHEMA_VERSION, RunDirectory
from bas_opd.run.engines import check_engine
from bas_opd.run.events import step_event
from bas_opd.run.footprint import check_host, measure, wants_gpu
from bas_opd.run.forecast import check_lengths, check_run, never_ranks, seldom_asks
from bas_opd.run.history import collect_outline, read_outline
from bas_opd.run.journal import CallJournal, with_repeated
from bas_opd.run.ledger import Ledger
from bas_opd.run.lock import NAME as OWNER
from bas_opd.run.progress import Quiet, RunProgress
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
    world: World | None = None,
) -> RunSummary:
    """Train to the last step, from the first or from the newest checkpoint of the same run.

    `overwrite` replaces a run of other settings or other data; the same run is resumed, so that a
    scheduler may repeat the command.
    `evaluate` is called every `eval.every` steps; `evaluate/during_training.py` makes it. `judge`
    decides what no rule can read, for methods that grade responses; `evaluate/rewarding.py` makes
    it. `world` are the processes that train together; without it, those that torchrun started.
    """
    if world is None:
        with joined(config) as found:
            return train(
                config,
                console,
                overwrite=overwrite,
                accept_changes=accept_changes,
                evaluate=evaluate,
                judge=judge,
                world=found,
            )
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
    console = console if world.leads else Quiet()
    data = world.each(lambda: PreparedSet.load(Path(config.data.path)))
    batches = check_run(config, data)
    total = len(batches)
    stop = StopFlag()
    path = Path(config.run.output or "runs/run")
    with (
        _full_memory_explained(path),
        _disk_failures_explained(path),
        _held(path, world) as run,
        stop.listening(),
    ):
        identity = identity_of(config, data, total, world)
        _check_ranks(config, identity, run, world)

        def totals_of_finished() -> tuple[bool, dict[str, Any] | None]:
            replaces = overwrite and run.is_another(identity)
            if replaces:
                return True, None
            run.compare(identity)
            if overwrite and run.identity.exists():
                console.message(
                    f"The run in {path} is this one, so nothing of it is deleted: it is resumed. "
                    "To start it over, remove its directory."
                )
            return False, _finished_totals(run, total, console.message)

        replaces, totals = world.led(totals_of_finished)
        if totals is not None:
            console.message(f"The run in {path} has finished; nothing is left to do.")
            return RunSummary(directory=path, model=run.model, totals=totals)
        journal = CallJournal(run.calls, check=run.check_held)
        checkpoints = CheckpointWriter(
            run.checkpoints,
            keep=config.run.keep_checkpoints,
            keep_every=config.run.keep_every,
            check=run.check_held,
            world=world,
        )
        hooks = Hooks(
            poll=stop.poll,
            notice=console.message,
            asked=journal.write,
            settle=checkpoints.settle,
        )
        for notice in (seldom_asks(config, batches), never_ranks(config, batches)):
            if notice:
                console.message(notice)
        if config.teacher.server is not None:
            check_served(config, load_processors(config)[0], data)
        if config.rollout.engine == "vllm":
            check_engine(config, load_processors(config)[0], data)
        console.message(f"Loading the model {config.model.path}.")

        def checked_files() -> tuple[dict[str, str], dict[str, str], dict[str, Any]]:
            base = model_hashes(local_folder(config.model.path), memory=run.hashes)
            other = config.teacher.path and local_folder(config.teacher.path)
            teacher = model_hashes(other, memory=run.hashes) if other else {}
            files = run.check_files(
                base, data, accept=accept_changes, is_new=replaces, teacher=teacher
            )
            return base, teacher, files

        base, teacher, files = world.led(checked_files)
        identity["dataset"]["pictures"] = files.pop("pictures")
        identity |= files
        if changed := identity.get("accepted_changes"):
            console.message(f"Changed files are accepted, on record: {', '.join(changed)}.")
        if config.optim.offload:
            world.led(lambda: check_host(measure(config)))
        method = world.each(lambda: build_method(config, hooks, judge=judge, run=run, world=world))
        identity |= model_identity(method.model)

        def check_prompts_once() -> None:
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

        world.led(check_prompts_once)
        prompts = PromptStream(
            data.examples,
            per_step=config.rollout.prompts_per_step,
            seed=config.run.seed,
            steps=total,
        )
        state = TrainState(method=method, prompts=prompts)
        needed = sum(world.gather(state.checkpoint_bytes))

        def claim_place() -> None:
            _check_disk(run.path, needed)
            run.check_held()
            if replaces:
                inputs = [config.model.path, *filter(None, [config.teacher.path]), data.folder]
                run.clear(inputs=[Path(each) for each in inputs])
            else:
                run.compare(identity)

        world.led(claim_place)
        with closing(method):
            steps = _Run(
                config,
                console,
                data,
                run,
                state,
                stop,
                total,
                evaluate,
                journal,
                world,
                checkpoints,
            )
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
        ranks = [machine.get("processes", 1) for machine in (before, now)]
        if ranks[0] != ranks[1]:
            other.append(f"there were {ranks[0]} processes, there are now {ranks[1]}")
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


@contextmanager
def joined(config: Config) -> Iterator[World]:
    """Join the processes that torchrun started for a run, if there are several."""
    is_gpu = wants_gpu(config)
    with World.joined(
        "cuda" if is_gpu else "cpu", timeout_minutes=config.shard.timeout_minutes
    ) as world:
        world.led(lambda: _check_size(config, world.size, is_gpu=is_gpu))
        yield world


def _check_size(config: Config, size: int, *, is_gpu: bool) -> None:
    if is_gpu and size > 1 and config.model.device not in ("auto", "cuda"):
        raise ConfigError(
            f"model.device is {config.model.device}, but each of {size} processes needs a GPU of "
            "its own. Set model.device=auto."
        )
    if size > 1 and config.teacher.server:
        raise ConfigError(
            f"A teacher behind a server (teacher.server) works with one process yet, and there are "
            f"{size}. Start one process, or leave it unset."
        )
    if (size > 1 or config.shard.always) and config.rollout.engine == "vllm":
        how = f"there are {size}" if size > 1 else "shard.always is true"
        raise ConfigError(
            f"rollout.engine is vllm, which works with one process yet, and {how}. Start one "
            "process without shard.always, or set rollout.engine=sampler."
        )


@contextmanager
def _held(path: Path, world: World) -> Iterator[RunDirectory]:
    """Lock the directory on the leader; the other ranks know its place only."""
    run = RunDirectory(path=path)
    with ExitStack() as held:

        def lock() -> None:
            nonlocal run
            run = held.enter_context(RunDirectory.held(path))

        world.led(lock)
        yield run


def _check_ranks(
    config: Config, identity: Mapping[str, Any], run: RunDirectory, world: World
) -> None:
    """Refuse ranks that differ in what the run depends on, or see another file system."""

    def facts() -> dict[str, Any]:
        now = identity["environment"]
        owner = run.path / OWNER
        return {
            "python": now["python"],
            "packages": now["packages"],
            "devices": "GPU" if wants_gpu(config) else "CPU",
            "settings": identity["config_hash"],
            "data": [identity["dataset"]["fingerprint"], identity["dataset"]["examples"]],
            "run directory": owner.read_text("utf-8") if owner.exists() else "absent",
            "host": socket.gethostname(),
        }

    first, *others = world.together(facts)

    def compare() -> None:
        for rank, other in enumerate(others, start=1):
            for what in first:
                if what != "host" and other[what] != first[what]:
                    raise ConfigError(_apart(what, rank, first, other, run.path))

    world.led(compare)


def _apart(
    what: str, rank: int, first: Mapping[str, Any], other: Mapping[str, Any], path: Path
) -> str:
    """Return the sentence about a rank that differs from the leader."""
    place = f"Rank {rank} on {other['host']}"
    if what == "run directory":
        return (
            f"{place} does not see {path} as the leader on {first['host']} does. Put run.output on "
            "a file system that all machines share."
        )
    shown = ""
    if what == "packages":
        names = first[what].keys() | other[what].keys()
        shown = ": " + ", ".join(
            f"{name} {other[what].get(name, 'absent')} where the leader has "
            f"{first[what].get(name, 'absent')}"
            for name in sorted(names)
            if first[what].get(name) != other[what].get(name)
        )
    elif what in ("python", "devices"):
        shown = f": {other[what]} where the leader has {first[what]}"
    return (
        f"{place} has other {what} than the leader on {first['host']}{shown}. Give all processes "
        "the same environment, command and files."
    )


def identity_of(
    config: Config, data: PreparedSet, steps: int, world: World | None = None
) -> dict[str, Any]:
    """Return which run this is, as far as it is known before its model is loaded."""
    several = {"processes": world.size} if world is not None and world.size > 1 else {}
    return {
        "schema_version": SCHEMA_VERSION,
        "config": dump(config),
        "config_hash": config_hash(config),
        "dataset": {"fingerprint": data.fingerprint, "examples": len(data.examples)},
        "environment": {**environment(), **several},
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
