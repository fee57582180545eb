"""`bas-opd plan`: what a run will cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bas_opd.cli.train import ConfigFile, Overrides, quiet_transformers
from bas_opd.text import counted, duration, printable

if TYPE_CHECKING:
    from bas_opd.commands.fitting import Fit, Form
    from bas_opd.commands.plan import Plan
    from bas_opd.config.schema import Config
    from bas_opd.model.activations import Batch


SWITCHES = {"lora": "rank", "judge": "url", "shard": "always", "eval": "every"}
"""Section -> the setting without which the others have no effect."""
SECOND_MODEL = {"grpo": "reference", "dapo": "reference", "sft": "initial model"}
"""Method -> what its second model is called, where that is not a teacher."""

MOST = 1_000_000
"""The most GPUs, and the most GB of one, that are planned for."""


def plan(
    config: ConfigFile,
    overrides: Overrides = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Run two steps to estimate time and peak memory.")
    ] = False,
    gpus: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=MOST, help="Show what each of N GPUs holds, and the switches."
        ),
    ] = None,
    memory: Annotated[
        float | None,
        typer.Option(
            metavar="GB",
            min=1,
            max=MOST,
            help="With --gpus: the memory of a GPU, to say what fits.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Show steps, queries, tokens, memory and disk of a run. Writes nothing."""
    import json
    from dataclasses import asdict

    from bas_opd.config import load_config

    if memory is not None and gpus is None:
        raise typer.BadParameter("It needs --gpus N.", param_hint="--memory")
    if memory is not None and math.isnan(memory):
        raise typer.BadParameter("It is a number of GB, such as 80.", param_hint="--memory")
    settings = load_config(config, overrides or ())

    from bas_opd.commands.plan import plan as plan_run

    quiet_transformers()
    room = None if memory is None else round(memory * 1e9)
    result = plan_run(settings, probe=probe, gpus=gpus, room=room)
    if as_json:
        typer.echo(json.dumps(asdict(result)))
    else:
        for line in lines(result):
            typer.echo(printable(line))


def lines(plan: Plan) -> Iterator[str]:
    """Yield a plan as lines of text."""
    from bas_opd.config.schema import Config

    yield from _settings(Config.model_validate(plan.config), plan.config)
    yield f"config hash {plan.config_hash}"
    yield ""
    for name, value in (*_queries(plan), *_sizes(plan)):
        yield f"{name:<18}{value}"
    for warning in plan.warnings:
        yield f"Warning: {warning}"
    if plan.unknown:
        what = "model" if plan.memory is None else "prompts"
        yield f"The {what} could not be measured. {plan.unknown}"
    for name, value in _time(plan):
        yield f"{name:<18}{value}"
    if plan.fit is not None:
        yield ""
        yield from _fit(plan.fit, SECOND_MODEL.get(plan.method, "teacher"))


def _settings(config: Config, dumped: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the settings that the run uses, as the command line takes them."""
    for section, settings in dumped.items():
        shown = {
            name: value
            for name, value in settings.items()
            if config.uses(f"{section}.{name}") and value not in (None, "")
        }
        if shown and settings.get(SWITCHES.get(section, ""), True):
            yield f"[{section}]"
            for name, value in shown.items():
                yield f"  {name} = {str(value).lower() if isinstance(value, bool) else value}"


def _queries(plan: Plan) -> Iterator[tuple[str, str]]:
    budget = f"{plan.least_budget:,}"
    if plan.most_budget != plan.least_budget:
        budget += f" to {plan.most_budget:,}"
    yield "steps", f"{plan.steps:,}, of {plan.rollouts_per_step:,} rollouts each"
    about = "" if plan.budget_kind == "calls" else "about "
    tokens = plan.tokens
    if plan.has_queries:
        yield "K per step", f"{about}{budget} {plan.budget_kind.replace('_', ' ')}"
        yield "teacher calls", f"{about}{plan.calls:,} of {plan.candidates:,} candidates"
        yield "scored tokens", f"about {tokens.scored:,}, if responses have {tokens.response}"
    else:
        yield "method", f"{plan.method}, which queries no teacher under a budget"
    yield "sampled tokens", f"about {tokens.sampled:,}, if responses have {tokens.response}"
    for name, value in (
        ("sampler prefills", tokens.prefilled),
        (f"{SECOND_MODEL.get(plan.method, 'teacher')} reads", tokens.teacher),
        ("student's top-k" if plan.has_queries else "old log-probs", tokens.rescored),
        ("student reads", tokens.student),
        ("total tokens", tokens.total),
    ):
        if value:
            yield name, f"about {value:,} tokens, prompts measured"


def _sizes(plan: Plan) -> Iterator[tuple[str, str]]:
    memory = plan.memory
    if memory:
        yield "parameters", f"{memory.parameters:,}, {memory.trained:,} of them trained"
    if memory and plan.fit is None:  # With --gpus, what each of them holds is shown instead.
        second = SECOND_MODEL.get(plan.method, "teacher")
        another = "host_teacher" if memory.is_offloaded else "own_teacher"
        for name in ("weights", "gradients", "adamw", "teacher", another, "sampler", "casts"):
            if size := getattr(memory, name):
                yield f"  {second if name.endswith('teacher') else name}", _bytes(size)
            if size and name == "host_teacher":
                yield "    its layers", f"{_bytes(memory.streamed_teacher)}, while it scores"
                yield "    its head", f"{_bytes(memory.teacher_head)}, until the update"
        yield "device memory", f"{_bytes(memory.device)}, and activations"
        copy = f"{_bytes(memory.copied)} while a checkpoint is written"
        locked = f"{_bytes(memory.locked)} page-locked, and " if memory.is_offloaded else ""
        yield "host memory", locked + copy
        yield "  to load", f"{_bytes(memory.read)}, for a while"
        other = not memory.is_offloaded
        device, host = _bytes(memory.on_device(offload=other)), memory.on_host(offload=other)
        forms = f"{device} on the device, {_bytes(host)} page-locked on the host"
        yield "  otherwise", f"{forms}, with optim.offload={str(other).lower()}"
    if disk := plan.disk:
        yield "checkpoint", f"{_bytes(disk.checkpoint)}, {disk.kept_checkpoints} kept"
        if disk.answers:
            given = f"if responses have {plan.tokens.response}"
            yield "stored answers", f"about {_bytes(disk.answers)}, {given}"
            yield "disk", f"about {_bytes(disk.most)}, {_bytes(disk.model)} of it the model"
        else:
            yield "disk", f"{_bytes(disk.most)} at most, {_bytes(disk.model)} of it the model"


def _time(plan: Plan) -> Iterator[tuple[str, str]]:
    if plan.probe is None:
        yield "time", "unknown; --probe measures two steps"
        return
    probe = plan.probe
    steps = f"{duration(probe.first_seconds)}, then {duration(probe.second_seconds)} per step"
    yield "time", f"{duration(60 * probe.minutes)} without checkpoints ({steps})"
    for phase, seconds in probe.phases.items():
        yield f"  {phase}", duration(seconds)
    if probe.peak_gpu_bytes is not None:
        yield "peak GPU memory", _bytes(probe.peak_gpu_bytes)


def _fit(fit: Fit, second: str) -> Iterator[str]:
    """Yield what each GPU holds, and what it would with other switches."""
    own, size = fit.forms[0], fit.forms[0].memory
    of = "" if fit.room is None else f" of {_bytes(fit.room)}"
    each = "On 1 GPU" if fit.gpus == 1 else f"On each of {fit.gpus:,} GPUs"
    groups = "" if fit.replicas == 1 else f", in {fit.replicas:,} groups"
    yield f"{each}{of}{groups}, with {own.switches}:"
    where = ", in host memory" if own.offload else ""
    phase = "it samples and scores" if own.reshard else "a phase computes"
    spread = own.reshard is not None
    for name, count, note in (
        ("weights", size.weights, ""),
        ("gradients", size.gradients, ""),
        ("adamw", size.adamw, where),
        (second, size.teacher, where),
        (second, size.host_teacher if own.offload else size.own_teacher, where),
        ("  its layers", size.streamed_teacher if own.offload else 0, ", while it scores"),
        ("  its head", size.teacher_head if own.offload else 0, ", until the update"),
        ("sampler", size.sampler, ""),
        ("gathered teacher", 0 if own.offload else size.gathered_teacher, ", while it scores"),
        ("gathered network", size.gathered, f", while {phase}"),
        ("one layer of it", size.pass_weights if own.reshard else 0, ", and what is in none"),
        ("  its gradients", size.pass_gradients, ", of one micro-batch"),
        ("  an exchange", size.exchanged, ", for a while"),
        ("casts and heads", size.casts, ""),
        ("micro-batch", own.micro_batch, f", about, of {_of(own.batch)}"),
        ("vLLM", own.engine, ", its weights and its cache, while it samples"),
    ):
        if count:
            yield f"  {name:<18}{_bytes(count):>9}{note}"
    yield f"  {'together':<18}{_bytes(own.device):>9}"
    if own.engine:
        yield f"  {'while it samples':<18}{_bytes(own.sampling):>9}, about"
    if own.caches:
        prompts = "1 prompt" if fit.prompts == 1 else f"{fit.prompts:,} prompts"
        sampled = f"{prompts} of up to {fit.length:,} tokens at a time"
        note = f", about, {_bytes(own.caches)} of it for {sampled}"
        yield f"  {'while it samples':<18}{_bytes(own.sampling):>9}{note}"
    switches = f"{'reshard':<9}" if spread else ""
    switches += f"{'offload':<9}{'checkpointing':<15}{'lora.rank':<11}"
    yield f"{switches}{'each GPU':>9}{'host per process':>18}"
    for form in fit.forms:
        fits = "" if fit.room is None else "  fits" if fit.holds(form) else "  does not fit"
        switches = f"{form.reshard!s:<9}" if spread else ""
        switches += f"{form.offload!s:<9}{form.checkpointing!s:<15}{form.lora_rank:<11}"
        fits += ", as configured" if form is own else ""
        yield f"{switches.lower()}{_bytes(form.device):>9}{_bytes(form.memory.host):>18}{fits}"
    if fit.room is None:
        return
    if not fit.advice:
        smaller = ", or a smaller rollout.engine_cache_gib" if own.engine else ""
        yield (
            "No combination of these settings fits, not even with smaller micro-batches. Use more "
            f"or larger GPUs{smaller}."
        )
    for form in fit.advice:
        yield _advice(own, form)
    if fit.linear_attention == "chunked":
        yield (
            "Linear attention is counted in chunks, since the GPU of this machine does not run the "
            "Triton kernels."
        )
    yield "10 % of a GPU is left for CUDA and NCCL. " + (
        "vLLM starts only where its weights and its cache fit beside the trainer's."
        if own.engine
        else "Sampling decides nothing here: it falls back to smaller batches where its caches do "
        "not fit, which takes longer."
    )


def _of(batch: Batch) -> str:
    rows = f", {counted(batch.rows, 'row')} with prompts of {batch.prompt:,}" if batch.rows else ""
    return f"{batch.tokens:,} tokens{rows}"


def _advice(own: Form, form: Form) -> str:
    """Return how a form that fits differs from the configured one."""
    on = "" if form.gpus == own.gpus else f" on {form.gpus} GPU alone"
    changes = own.changes(form)
    if form.tokens != own.tokens:
        changes.append(f"optim.tokens_per_micro_batch={form.tokens}")
    if not changes:
        return f"State and micro-batch fit{on} as configured."
    only = "" if form.lora_rank == own.lora_rank else " That trains adapters only."
    return f"State and micro-batch would fit{on} with {' '.join(changes)}.{only}"


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1e3:.1f} kB"
