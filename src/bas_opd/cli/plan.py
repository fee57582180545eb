"""`bas-opd plan`: what a run will cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bas_opd.commands.plan import Plan


def plan(
    config: Annotated[Path, typer.Argument(help="TOML file, such as configs/learned25.toml.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings, such as select.query_ratio=0.1."),
    ] = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Run two steps to estimate time and peak memory.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Show steps, queries, tokens, memory and disk of a run. Writes nothing."""
    import json
    from dataclasses import asdict

    from bas_opd.config import load_config

    settings = load_config(config, overrides or ())

    from bas_opd.cli.train import quiet_transformers
    from bas_opd.commands.plan import plan as plan_run
    from bas_opd.text import printable

    quiet_transformers()
    result = plan_run(settings, probe=probe)
    if as_json:
        typer.echo(json.dumps(asdict(result)))
    else:
        for line in lines(result):
            typer.echo(printable(line))


def lines(plan: Plan) -> Iterator[str]:
    """Yield a plan as lines of text."""
    for section, settings in plan.config.items():
        yield f"[{section}]"
        for name, value in settings.items():
            yield f"  {name} = {value}"
    yield f"config hash {plan.config_hash}"
    yield ""
    budget = f"{plan.least_budget:,}"
    if plan.most_budget != plan.least_budget:
        budget += f" to {plan.most_budget:,}"
    yield _row("steps", f"{plan.steps:,}, of {plan.rollouts_per_step:,} rollouts each")
    yield _row("K per step", budget)
    yield _row("teacher calls", f"{plan.calls:,} of {plan.candidates:,} candidates")
    yield from _tokens(plan)
    yield from _sizes(plan)
    if plan.unknown:
        yield f"The model could not be measured. {plan.unknown}"
    yield from _time(plan)


def _tokens(plan: Plan) -> Iterator[str]:
    tokens = plan.tokens
    yield _row("scored tokens", f"about {tokens.scored:,}, if responses have {tokens.response}")
    for name, value in (
        ("teacher reads", tokens.teacher),
        ("student reads", tokens.student),
        ("sampler reads", tokens.rollout),
    ):
        if value is not None:
            yield _row(name, f"about {value:,} tokens, prompts measured")


def _sizes(plan: Plan) -> Iterator[str]:
    if plan.memory:
        memory = plan.memory
        yield _row("parameters", f"{memory.parameters:,}, {memory.trained:,} of them trained")
        for name in ("weights", "gradients", "adamw", "teacher", "casts"):
            yield _row(f"  {name}", _bytes(getattr(memory, name)))
        yield _row("device memory", f"{_bytes(memory.device)}, and activations")
        yield _row("host memory", f"{_bytes(memory.host_copy)} while a checkpoint is written")
    if plan.disk:
        disk = plan.disk
        yield _row("checkpoint", f"{_bytes(disk.checkpoint)}, {disk.kept_checkpoints} kept")
        yield _row("disk", f"{_bytes(disk.most)} at most, {_bytes(disk.model)} of it the model")


def _time(plan: Plan) -> Iterator[str]:
    from bas_opd.text import duration

    if plan.probe is None:
        yield _row("time", "unknown; --probe measures two steps")
        return
    probe = plan.probe
    steps = f"{duration(probe.first_seconds)}, then {duration(probe.second_seconds)} per step"
    yield _row("time", f"{duration(60 * probe.minutes)} without checkpoints ({steps})")
    for phase, seconds in probe.phases.items():
        yield _row(f"  {phase}", duration(seconds))
    if probe.peak_gpu_bytes is not None:
        yield _row("peak GPU memory", _bytes(probe.peak_gpu_bytes))


def _row(name: str, value: str) -> str:
    return f"{name:<18}{value}"


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1e3:.1f} kB"
