"""Everything that must survive a kill: built from a configuration, captured, restored."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bas_opd.algorithm import Stages
from bas_opd.answers import grade
from bas_opd.compute.clock import Clock
from bas_opd.compute.compiling import has_kernels, has_triton, is_fast
from bas_opd.compute.world import World, launched_here
from bas_opd.config.schema import Config, overlong_cache
from bas_opd.data.order import PromptStream
from bas_opd.data.records import grades_by_last_word, read_manifest
from bas_opd.data.views import PromptLength, answer_view, crop_view, full_size, full_view
from bas_opd.distill.kernels import LARGEST_K
from bas_opd.distill.loss import DistillSettings
from bas_opd.errors import CheckpointError, ConfigError, ModelError
from bas_opd.learn import (
    ClipSettings,
    Correction,
    Distillation,
    Learner,
    OptimizerSettings,
    TokenLogprobs,
)
from bas_opd.methods import (
    BasOpd,
    Dapo,
    Grpo,
    GrpoSettings,
    Method,
    PatientPoll,
    RuleReward,
    Sft,
    opsd,
)
from bas_opd.methods.reward import Judge, Unread
from bas_opd.model.delta import implementation
from bas_opd.model.encoding import ViewEncoder, idle_threads
from bas_opd.model.folder import local_folder, model_hashes
from bas_opd.model.loading import LoraSettings, open_model
from bas_opd.model.processing import Processor, check_same_tokens
from bas_opd.model.size import model_size
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.model.weights import ShadowWeights
from bas_opd.rollout import AheadEngine, RolloutEngine, Sampler
from bas_opd.rollout.ahead import Beside
from bas_opd.rollout.sampler import CopySampler, encode
from bas_opd.run.checkpoint import Snapshot
from bas_opd.run.directory import Identity, RunDirectory, changes
from bas_opd.run.engines import sampling_settings, vllm_engine
from bas_opd.run.footprint import more_room, wants_gpu
from bas_opd.run.forecast import has_view, shown_size
from bas_opd.run.ledger import Ledger
from bas_opd.run.packages import package_versions
from bas_opd.run.ranks import in_turns
from bas_opd.run.record import EvaluationRecord
from bas_opd.run.served import served_teacher
from bas_opd.select import build_selector
from bas_opd.select.led import LedSelector
from bas_opd.teacher import FrozenTeacher, SelfTeacher, Teacher
from bas_opd.teacher.self_teacher import ViewSize
from bas_opd.types import Example, Grade, Hooks, Part, Rollouts, TeacherSupport, View

FROZEN: dict[str, Any] = {"frozen": True, "gradient_checkpointing": False}
"""How a model is loaded that is never trained."""
ROUNDING = ("gpu", "cpu", "instructions", "threads", "linear_attention", "triton")
"""Parts of the environment that change how sums are rounded."""


def build_method(
    config: Config,
    hooks: Hooks | None = None,
    *,
    judge: Judge | None = None,
    run: RunDirectory | None = None,
    world: World | None = None,
    support: TeacherSupport = "teacher",
) -> Method:
    """Load the model and set every stage of the method to its start (Alg. 1, line 1).

    `judge` decides what no rule can read, where the method grades responses. `run` is where a
    served teacher keeps its requests and answers; `support` says at whose likeliest tokens it is
    asked. In a world of several processes the parameters are spread over them.
    """
    if config.teacher.server is not None and run is None:
        other = "; an audit may use --teacher student" if config.teacher.view == "crop" else ""
        raise ConfigError(
            "This command would ask a served teacher (teacher.server) outside the budget of a run. "
            f"Only `bas-opd train` asks it{other}."
        )
    name, hooks, offload = config.method.name, hooks or Hooks(), config.optim.offload
    if config.teacher.path is not None:
        load_processors(config)  # Their tokens are compared before gigabytes are read.
    world = replace(world or World(), advice=more_room(config))

    def load_student() -> VisionLanguageModel:
        model = load_policy(config, world)
        if world.size > 1 or config.shard.always:
            model.shard(world, by_layer=config.shard.reshard)
        return model

    model = _in_turns(world, config.model.path, load_student)
    poll = PatientPoll(hooks.poll)
    learner = Learner(
        model, OptimizerSettings(**config.optim.model_dump()), replace(hooks, poll=poll), world
    )
    clock = Clock(model.device)
    threads = picture_threads(config, model.device)

    def encoder(view: View, processor: Processor = model.processor) -> ViewEncoder:
        return ViewEncoder(processor, view, clock, threads=threads, poll=poll)

    def sampler(view: View) -> RolloutEngine:
        # Other commands than `train` use the sampler: it draws the same, and needs no engine.
        if run is not None and config.rollout.engine == "vllm":
            return vllm_engine(config, model, encoder(view), hooks, world)
        return Sampler(model, view, sampling_settings(config), hooks, world, encoder(view))

    def policy() -> RolloutEngine:
        if run is None or not config.rollout.ahead:
            return sampler(full_view)
        # Not the encoder of the engine, which may encode in a thread meanwhile.
        again = ViewEncoder(model.processor, full_view, clock)
        prompt = partial(encode, again, most=config.data.max_prompt_tokens)

        def length(example: Example) -> int:
            return model.processor.prompt_length(*full_size(example))

        if not config.rollout.overlap:
            return AheadEngine(sampler(full_view), prompt, length)
        beside = Beside(model.device, hooks.poll)
        copy = load_policy(config, world, is_copy=True)
        drawing = Hooks(poll=beside.poll, notice=hooks.notice)
        views = ViewEncoder(copy.processor, full_view, threads=threads, poll=drawing.poll)
        engine = CopySampler(
            copy, full_view, sampling_settings(config), drawing, World(advice=world.advice), views
        )
        return AheadEngine(engine, prompt, length, beside=beside)

    def teacher(view: View, size: ViewSize | None = None) -> Teacher:
        if run is not None and config.teacher.server is not None:
            return served_teacher(config, model, view, run, hooks, world, support)
        settings = config.teacher.model_dump(include={"mode", "tau", "tokens_per_batch"})
        if config.teacher.path is None:
            return SelfTeacher(
                model,
                view,
                **settings,
                offload=offload,
                hooks=hooks,
                size=size,
                world=world,
                views=encoder(view),
            )
        own = {**FROZEN, "path": config.teacher.path, "device": str(model.device)}

        def load() -> VisionLanguageModel:
            other = open_model(**{**config.model.model_dump(), **own}, on_host=offload)
            if offload or model.shards is not None:
                other.shard(world, on_host=offload)
            return other

        precision = model.precision if offload else None
        other = _in_turns(world, config.teacher.path, load, kept_in=precision)
        return FrozenTeacher(
            other,
            view,
            tokens_per_batch=config.teacher.tokens_per_batch,
            hooks=hooks,
            size=size,
            world=world,
            views=encoder(view, other.processor),
        )

    def reward() -> RuleReward:
        source = read_manifest(Path(config.data.path)).source
        asked = None if judge is None else partial(_led, world, judge)
        by_last_word = grades_by_last_word(source)
        return RuleReward(model=model, by_last_word=by_last_word, judge=asked, poll=poll)

    if name == "sft":
        return Sft(
            model=model,
            initial=ShadowWeights(model, offload=offload),
            engine=sampler(crop_view),
            views=encoder(full_view),
            learner=learner,
            clock=clock,
            max_response_tokens=config.rollout.max_response_tokens,
            reward=reward() if config.sft.keep == "right" else None,
            tokens_per_chunk=config.distill.tokens_per_chunk,
            world=world,
        )
    if name in ("grpo", "dapo"):
        common: dict[str, Any] = {
            "model": model,
            "policy": policy(),
            "reward": reward(),
            "learner": learner,
            "clock": clock,
            "settings": _grpo_settings(config, model),
            "poll": poll,
            "reference": _initial_model(config, model, hooks, world) if config.grpo.beta else None,
            "world": world,
        }
        if name == "grpo":
            return Grpo(**common)
        return Dapo(**common, rounds=config.dapo.rounds, overlong_cache=overlong_cache(config))
    objective = partial(
        Distillation,
        head=model.logits,
        fast_head=model.fast_head,
        settings=DistillSettings(**config.distill.model_dump()),
        correction=None
        if (cap := config.importance_cap) is None
        else Correction(logprobs=_drawn_logprobs(config, model), cap=cap),
    )
    if name == "opsd":
        return opsd(
            model=model,
            policy=policy(),
            teacher=teacher(answer_view),
            learner=learner,
            objective=objective,
            clock=clock,
        )
    selector = build_selector(**config.select.model_dump(exclude={"query_ratio", "budget"}))
    return BasOpd(
        model=model,
        query_ratio=config.select.query_ratio,
        budget=config.select.budget,
        stages=Stages(
            policy=policy(),
            selector=selector if world.size == 1 else LedSelector(selector, world),
            teacher=teacher(
                crop_view if config.needs_crops else full_view, partial(shown_size, config)
            ),
            learner=learner,
            objective=objective,
            clock=clock,
            grade=partial(_graded, model) if config.select.correctness else None,
            has_view=partial(has_view, config),
        ),
    )


def picture_threads(config: Config, device: torch.device) -> int:
    """Return how many threads open pictures ahead of time."""
    if config.data.workers is not None:
        return config.data.workers
    return idle_threads(device, launched_here())


def _grpo_settings(config: Config, model: VisionLanguageModel) -> GrpoSettings:
    grpo, rollout = config.grpo, config.rollout
    return GrpoSettings(
        prompts_per_step=rollout.prompts_per_step,
        updates_per_step=grpo.updates_per_step,
        max_response_tokens=rollout.max_response_tokens,
        scale=grpo.scale,
        clip=ClipSettings(
            **grpo.model_dump(exclude={"scale", "updates_per_step"}),
            importance_cap=config.importance_cap,
        ),
        logprobs=_drawn_logprobs(config, model),
        tokens_per_chunk=config.distill.tokens_per_chunk,
    )


def _drawn_logprobs(config: Config, model: VisionLanguageModel) -> TokenLogprobs:
    """Return log p of what the rollouts are drawn from."""
    return TokenLogprobs(
        temperature=config.rollout.temperature, suppressed=tuple(model.processor.suppressed_ids)
    )


def _led(
    world: World, judge: Judge, unread: Sequence[Unread], poll: Callable[[], None]
) -> Sequence[Grade]:
    """Let the leader ask, so that each request is paid for once."""
    return world.led(lambda: judge(unread, poll))


def _initial_model(
    config: Config, model: VisionLanguageModel, hooks: Hooks, world: World
) -> SelfTeacher:
    """The reference of GRPO: the model as it was, seeing what the student sees."""
    tokens = config.teacher.tokens_per_batch
    hooks = Hooks(poll=hooks.poll, notice=hooks.notice)  # Its rows are no queries.
    return SelfTeacher(
        model,
        full_view,
        mode="frozen",
        tokens_per_batch=tokens,
        offload=config.optim.offload,
        hooks=hooks,
        world=world,
    )


def _graded(
    model: VisionLanguageModel, rollouts: Rollouts, rows: Sequence[int]
) -> tuple[Grade, ...]:
    """Compare the responses of rows with the answers of their examples."""
    return tuple(
        grade(
            model.processor.decode(rollouts.tokens[row, : int(rollouts.lengths[row])]),
            rollouts.example_of(row).answer,
        )
        for row in rows
    )


@dataclass(slots=True, kw_only=True)
class TrainState:
    """A method with all that it remembers, its prompts, the ledger, and the step to come."""

    method: Method
    prompts: PromptStream
    ledger: Ledger = field(default_factory=Ledger)
    step: int = 0
    bad_steps: int = 0
    """Steps in a row, up to now, that were not finite."""
    evaluation: EvaluationRecord | None = None
    """The last evaluation during training."""
    best: EvaluationRecord | None = None
    """The best of them."""

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of this process's files: what each part holds, and two moments of its weights."""
        shards = self.method.model.shards
        if shards is not None and not shards.world.saves:
            return 0
        parts = self.method.parts().values()
        moments = sum(part.moment_bytes for part in parts if isinstance(part, Learner))
        return moments + sum(
            tensor.nbytes for part in parts for tensor in part.state_dict().values()
        )

    def capture(self) -> Snapshot:
        """Return the whole state in host memory: a copy of what is not there.

        What is there already is read in place. It changes only after `Hooks.settle`, which waits
        until it has been read.
        """
        parts = self.method.parts()
        states = {name: part.state_dict() for name, part in parts.items()}
        shards = self.method.model.shards
        firsts: dict[str, dict[str, int]] = {}
        if shards is not None:
            for name, state in states.items():
                places = {key: shards.first_row(key, tensor) for key, tensor in state.items()}
                firsts[name] = {key: place for key, place in places.items() if place is not None}
            world = shards.world
            if not world.leads:  # What all ranks hold alike is the leader's to save.
                states = {
                    name: {key: state[key] for key in firsts[name] if world.saves}
                    for name, state in states.items()
                }
        return Snapshot(
            step=self.step,
            tensors={
                name: _on_host(state, copy=not _is_offloaded(parts[name]))
                for name, state in states.items()
            },
            first_rows=firsts,
            data={
                "ledger": self.ledger.totals(),
                "bad_steps": self.bad_steps,
                "cursor": self.prompts.cursor,
                **{
                    name: each.model_dump()
                    for name, each in (("evaluation", self.evaluation), ("best", self.best))
                    if each is not None
                },
            },
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Become what `capture` saw."""
        restore_parts(self.method, snapshot.tensors)
        self.ledger = Ledger(**snapshot.data["ledger"])
        self.bad_steps = snapshot.data["bad_steps"]
        self.evaluation, self.best = (
            EvaluationRecord.model_validate(snapshot.data[name]) if name in snapshot.data else None
            for name in ("evaluation", "best")
        )
        self.step = snapshot.step
        # Checkpoints of version 0.1 have no cursor: every step took one batch.
        self.prompts.cursor = snapshot.data.get("cursor", snapshot.step)


def restore_parts(method: Method, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Restore every part of a method; a checkpoint that lacks one is refused."""
    parts = method.parts()
    if missing := sorted(parts.keys() - tensors.keys()):
        raise CheckpointError(
            f"The checkpoint does not hold the {' and the '.join(missing)} of this run. The run "
            "cannot resume from it; start over in another run.output."
        )
    for name, part in parts.items():
        part.load_state_dict(tensors[name])


def _is_offloaded(part: Part) -> bool:
    return isinstance(part, Learner | ShadowWeights) and part.is_offloaded


def _on_host(tensors: Mapping[str, Tensor], *, copy: bool) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=copy) for name, tensor in tensors.items()}


def model_identity(model: VisionLanguageModel) -> dict[str, str]:
    """Return what the numbers of a run depend on besides its settings and its data.

    The base model is known by a sample of every weight, which distinguishes two models without
    reading gigabytes. Call it before anything is restored, and on every rank.
    """
    digest = hashlib.sha256()
    for name, parameter in model.network.named_parameters():
        rows = parameter if model.shards is None else model.shards.rows[name]
        flat = model.whole(name, rows.detach()).flatten()
        sample = flat[:: max(1, flat.numel() // 64)].float().cpu()
        digest.update(f"{name} {tuple(parameter.shape)}".encode() + sample.numpy().tobytes())
    return {
        "device": model.device.type,
        "precision": str(model.precision).removeprefix("torch."),
        "base": digest.hexdigest(),
    }


def check_base(identity: Identity, path: str, model: VisionLanguageModel) -> None:
    """Refuse a model that a run did not start from: by its files, or in old runs by a sample."""
    if identity.base_files:
        other = changes(identity.base_files, model_hashes(local_folder(path)))
    else:
        is_other = identity.base and model_identity(model)["base"] != identity.base
        other = ("the weights",) if is_other else ()
    if other:
        raise ModelError(
            f"The model at {path} is not the one that the run started from: {next(iter(other))} "
            "differs. Give the path of that one with --base."
        )


def check_teacher(identity: Identity, path: str) -> None:
    """Refuse a teacher model other than that of a run."""
    if other := changes(identity.teacher_files, model_hashes(local_folder(path))):
        raise ModelError(
            f"The teacher at {path} is not the one of the run: {next(iter(other))} differs. "
            "Restore its files."
        )


def environment() -> dict[str, Any]:
    """Return the versions and the hardware that the numbers of a run may depend on."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": package_versions(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cpu": _cpu(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def gpu_kernels() -> dict[str, Any]:
    """Return which of several kernels a model on a GPU computes with; nothing without one."""
    if not torch.cuda.is_available():
        return {}
    device = torch.device("cuda")
    kinds = {
        "learning": implementation(device, learns=True),
        "sampling": implementation(device, learns=False),
    }
    return {"linear_attention": kinds, "triton": has_triton()}


def slow_paths(config: Config, model: VisionLanguageModel) -> list[str]:
    """Say what the settings or the model keep from the fast paths of a GPU."""
    if not is_fast(model.device):
        return []
    said = []
    if model.fast_head is None and model.precision is not torch.float32:
        said.append(
            "The head of this model does more than multiply, as with adapters or a bias, so logits "
            "and the loss are computed in float32, which takes about ten times as long."
        )
    if has_kernels(model.device):
        if config.distill.k > LARGEST_K:
            said.append(
                f"distill.k is {config.distill.k:,}, and the kernels of the loss take at most "
                f"{LARGEST_K}, so it is computed by slower PyTorch operations."
            )
        if config.rollout.top_p < 1:
            said.append(
                "rollout.top_p is below 1, which the kernels that draw tokens do not compute, so "
                "they are drawn by slower PyTorch operations."
            )
    return said


def _cpu() -> str:
    """Return the name of the processor, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def load_processors(config: Config) -> tuple[Processor, Processor | None]:
    """Load the processor of the model and that of a teacher that is another model.

    Their tokens must be the same.
    """
    settings = config.model.model_dump(include={"thinking", "min_pixels", "max_pixels"})
    student = Processor.load(config.model.path, **settings)
    if config.teacher.path is None:
        return student, None
    teacher = Processor.load(config.teacher.path, **settings)
    check_same_tokens(teacher, student)
    return student, teacher


def prompt_lengths(config: Config) -> tuple[PromptLength, PromptLength | None]:
    """Return how long prompts are for the model, and for a teacher that is another model."""
    student, teacher = load_processors(config)
    return student.prompt_length, teacher and teacher.prompt_length


def _in_turns(
    world: World,
    path: str | Path,
    load: Callable[[], VisionLanguageModel],
    *,
    kept_in: torch.dtype | None = None,
) -> VisionLanguageModel:
    """Load a model, on as many ranks of a machine at a time as it has room for.

    One that a rank keeps in host memory is kept in a precision; the others leave it.
    """
    if world.size == 1:
        return load()
    if kept_in is None:
        return in_turns(world, load, needs=model_size(path).loading)
    size = model_size(path, precision=kept_in, frozen=True, ranks=world.parts, on_host=True)
    return in_turns(world, load, needs=size.loading, keeps=size.weights)


def load_policy(
    config: Config, world: World | None = None, *, is_copy: bool = False
) -> VisionLanguageModel:
    """Load the model of a configuration on its device, in its precision.

    Each process of a machine has a GPU of its own. A copy samples only, with weights that it gets.
    """
    lora = None
    if config.lora.rank:
        lora = LoraSettings(**config.lora.model_dump(), seed=config.run.seed)
    settings = config.model.model_dump()
    if world is not None and world.size > 1 and wants_gpu(config):
        settings["device"] = f"cuda:{world.local_rank}"
    if is_copy:
        settings |= FROZEN
    return open_model(**settings, lora=lora)
