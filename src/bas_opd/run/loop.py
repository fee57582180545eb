"""A run: what is checked before it starts, then its steps."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from bas_opd import __version__
from bas_opd.compute.memory import ran_out
from bas_opd.compute.world import World, launched_here
from bas_opd.config.loading import config_hash, dump
from bas_opd.config.schema import Config
from bas_opd.data.order import PromptStream
from bas_opd.data.records import PreparedSet
from bas_opd.errors import (
    BasOpdError,
    ConfigError,
    OutOfMemory,
    explain_failure,
)
from bas_opd.files import file_hashes, once
from bas_opd.methods.reward import Judge
from bas_opd.model.folder import local_folder, model_hashes
from bas_opd.run.checkpoint import (
    CheckpointWriter,
    published,
)
from bas_opd.run.directory import SCHEMA_VERSION, RunDirectory
from bas_opd.run.engines import check_engine
from bas_opd.run.footprint import check_host, measure, more_room, wants_gpu
from bas_opd.run.forecast import (
    check_lengths,
    check_run,
    never_ranks,
    seldom_asks,
    seldom_grades,
)
from bas_opd.run.history import collect_outline, refuse_step
from bas_opd.run.journal import CallJournal
from bas_opd.run.ledger import Ledger
from bas_opd.run.progress import Quiet, RunProgress
from bas_opd.run.ranks import check_machines, check_ranks, held, joined
from bas_opd.run.served import check_served
from bas_opd.run.state import (
    TrainState,
    build_method,
    environment,
    gpu_kernels,
    load_processors,
    model_identity,
    prompt_lengths,
    slow_paths,
)
from bas_opd.run.steps import Evaluate, RunSteps, RunSummary
from bas_opd.run.stopping import StopFlag
from bas_opd.run.stored_answers import answers_until_checkpoint
from bas_opd.types import Hooks, TeacherSupport


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
    batches = world.each(lambda: check_run(config, data))
    total = len(batches)
    stop = StopFlag()
    path = Path(config.run.output or "runs/run")
    with (
        _full_memory_explained(path, config),
        _disk_failures_explained(path),
        held(path, world) as run,
        stop.listening(),
    ):
        identity = identity_of(config, data, total, world)
        check_ranks(identity, run, world)

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
        for notice in (
            seldom_asks(config, batches),
            never_ranks(config, batches),
            seldom_grades(config, data),
        ):
            if notice:
                console.message(notice)
        support: TeacherSupport = "teacher"
        if config.teacher.server is not None:
            sent = None if replaces else run.requests
            support = world.led(
                lambda: check_served(config, load_processors(config)[0], data, sent)
            )
            console.message(f"The teacher is compared at the likeliest tokens of the {support}.")
        if config.rollout.engine == "vllm":
            world.each(lambda: check_engine(config, load_processors(config)[0], data))
        console.message(f"Loading the model {config.model.path}.")

        def checked_files() -> tuple[dict[str, Any], ...]:
            base = model_hashes(local_folder(config.model.path), memory=run.hashes)
            other = config.teacher.path and local_folder(config.teacher.path)
            teacher = model_hashes(other, memory=run.hashes) if other else {}
            pictures = data.picture_hashes(memory=run.hashes)
            files = run.check_files(
                base, data, pictures, accept=accept_changes, is_new=replaces, teacher=teacher
            )
            altered = dict(pictures.items() - data.prepared_hashes.items())
            return base, teacher, altered, files

        base, teacher, altered, files = world.led(checked_files)
        others = {config.teacher.path: teacher} if config.teacher.path else {}
        models = {config.model.path: base, **others}
        check_machines(models, data, files["pictures"], altered, run, world)
        identity["dataset"]["pictures"] = files.pop("pictures")
        identity |= files
        if changed := identity.get("accepted_changes"):
            console.message(f"Changed files are accepted, on record: {', '.join(changed)}.")
        if config.optim.offload:
            is_spread = world.size > 1 or config.shard.always
            memory = partial(measure, config, ranks=world.parts if is_spread else None)
            is_first = world.local_rank == 0
            world.together(lambda: check_host(memory(), launched_here()) if is_first else None)
        method = world.each(
            lambda: build_method(config, hooks, judge=judge, run=run, world=world, support=support)
        )
        identity |= model_identity(method.model)
        for notice in slow_paths(config, method.model):
            console.message(notice)

        def check_prompts_once() -> None:
            once(
                run.hashes,
                {
                    "prompts": [config.method.name, config.data.max_prompt_tokens, __version__],
                    "view": config.teacher.view,
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
            _check_disk(run.path, needed, answers_until_checkpoint(config, batches))
            run.check_held()
            if replaces:
                inputs = [config.model.path, *filter(None, [config.teacher.path]), data.folder]
                run.clear(inputs=[Path(each) for each in inputs])
            else:
                run.compare(identity)

        world.led(claim_place)
        with closing(method):
            steps = RunSteps(
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
def _full_memory_explained(path: Path, config: Config) -> Iterator[None]:
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
            f"they were. To resume, {more_room(config, ['optim.offload'])}, and rerun the command; "
            "adapters or another teacher need another run.output."
        ) from error


def identity_of(
    config: Config, data: PreparedSet, steps: int, world: World | None = None
) -> dict[str, Any]:
    """Return which run this is, as far as it is known before its model is loaded."""
    several = {"processes": world.size} if world is not None and world.size > 1 else {}
    is_fast = wants_gpu(config) and config.model.kernels == "auto"
    kernels = gpu_kernels() if is_fast else {}
    return {
        "schema_version": SCHEMA_VERSION,
        "config": dump(config),
        "config_hash": config_hash(config),
        "dataset": {"fingerprint": data.fingerprint, "examples": len(data.examples)},
        "environment": {**environment(), **kernels, **several},
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
    ledger = Ledger.carried_on(finished.totals) or Ledger.of(outline.read_steps(refuse_step))
    return ledger.totals()


def _check_disk(path: Path, checkpoint: int, answers: int) -> None:
    """Refuse a run whose first checkpoint could not be written.

    `answers` are about the bytes that a served teacher's answers take until then.
    """
    free = shutil.disk_usage(path).free
    if free < checkpoint + answers:
        stored = f", the teacher's answers before it about {answers / 1e9:,.1f} GB"
        raise BasOpdError(
            f"A checkpoint of this run takes {checkpoint / 1e9:,.1f} GB"
            f"{stored if answers else ''}, but {path} has only {free / 1e9:,.1f} GB free. Free "
            "some space, or choose another run.output; `bas-opd plan` says what the whole run "
            "needs."
        )
