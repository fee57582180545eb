"""`bas-opd train`: train or resume a run."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bas_opd.config.schema import Config


GROUPS = {
    "To try it": "tiny demo finesearch finesearch2",
    "Models": "qwen3.5-4b-lora qwen3.5-4b qwen3.5-9b",
    "The paper's policies": "full random25 entropy25 learned10 learned25 learned50",
    "Its ablations": "learned25-without-overlap learned25-without-confidence "
    "learned25-without-ranking learned25-without-exploration",
    "Methods that it compares with": "sft sft-unfiltered grpo grpo-released dapo opsd opsd-frozen",
    "Not in the paper": "covering12 covering25 covering-prompts regressed25 fewer1 fewer2 fewer4",
}
"""The presets in the order of their use."""


def _preset_names(incomplete: str) -> list[str]:
    from bas_opd.config.loading import presets

    return [name for name in presets() if name.startswith(incomplete)]


ConfigFile = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG",
        help="A preset, such as learned25, or a TOML file. train --list: presets.",
        autocompletion=_preset_names,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Settings, such as select.query_ratio=0.1."),
]


def _list_presets(requested: bool) -> None:
    if not requested:
        return
    from bas_opd.config.loading import presets
    from bas_opd.model.base import NAMES

    typer.echo("Presets, as in `bas-opd train learned25 model.path=MODEL data.path=DATA`.")
    sentences = presets()
    for group, names in GROUPS.items():
        typer.echo(f"{group}:")
        for name in names.split():
            typer.echo(f"  {name}")
            typer.echo(textwrap.indent(textwrap.fill(sentences[name], 66), " " * 6))
    typer.echo(f"Models in this package, as in model.path=small: {', '.join(NAMES)}.")
    typer.echo("Sets that are drawn, as in data.path=finesearch: finesearch, finesearch2.")
    raise typer.Exit


def train(
    context: typer.Context,
    config: ConfigFile,
    overrides: Overrides = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Replace a run of other settings or data; the same run is resumed."
        ),
    ] = False,
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes",
            help="Resume although files of the model or pictures have changed; it is recorded.",
        ),
    ] = False,
    track: Annotated[
        list[str] | None,
        typer.Option(help="Also log metrics to tensorboard, trackio or wandb; repeatable."),
    ] = None,
    ray: Annotated[
        int | None,
        typer.Option(metavar="WORKERS", min=1, help="Train in so many processes of a Ray cluster."),
    ] = None,
    ray_restarts: Annotated[
        int, typer.Option(min=0, help="With --ray: restarts after a process has died.")
    ] = 3,
    listed: Annotated[
        bool,
        typer.Option("--list", callback=_list_presets, is_eager=True, help="List the presets."),
    ] = False,
) -> None:
    """Train a model from a config. Run the same command again to resume."""
    from bas_opd.compute.parent import stop_with_agent
    from bas_opd.compute.world import telling_others
    from bas_opd.config import load_config

    stop_with_agent()
    with telling_others():
        settings = load_config(config, overrides or ())
    if ray is not None:
        from bas_opd.run.ray_ranks import train_on_ray

        words = ["--debug"] * context.find_root().params["debug"]
        words += ["train", str(config), *(overrides or ())]
        words += ["--overwrite"] * overwrite + ["--accept-changes"] * accept_changes
        words += [word for name in track or () for word in ("--track", name)]
        code = train_on_ray(
            words,
            workers=ray,
            restarts=ray_restarts,
            device=settings.model.device,
            wait_minutes=settings.shard.timeout_minutes,
        )
        raise typer.Exit(code)
    _train(settings, track or (), overwrite=overwrite, accept_changes=accept_changes)


def _train(
    settings: Config, track: Sequence[str], *, overwrite: bool, accept_changes: bool
) -> None:
    """Train in this process, and in those that were started with it."""
    from bas_opd.compute.world import launched, telling_others

    rank, size = launched()
    if rank == 0:
        # These import torch, which takes seconds, so the config comes first.
        together = f" with {size} processes" if size > 1 else ""
        typer.echo(
            f"Training {settings.model.path} in {settings.run.output}{together}: loading PyTorch."
        )
    with telling_others():
        from bas_opd.commands.named_set import with_named_set
        from bas_opd.evaluate.during_training import evaluator
        from bas_opd.evaluate.rewarding import reward_judge
        from bas_opd.run import loop
        from bas_opd.run.console import Console
        from bas_opd.run.tracking import Tracked, check_trackers

        trackers = check_trackers(track)
    quiet_transformers()
    with (
        loop.joined(settings) as world,
        Console(run=Path(settings.run.output or "runs/run")) as console,
    ):
        place = world.led(lambda: with_named_set(settings, console).data.path)
        data = settings.data.model_copy(update={"path": place})
        settings = settings.model_copy(update={"data": data})
        done = loop.train(
            settings,
            Tracked(console, settings, trackers),
            overwrite=overwrite,
            accept_changes=accept_changes,
            evaluate=world.each(lambda: evaluator(settings)),
            judge=world.each(lambda: reward_judge(settings, leads=world.leads)),
            world=world,
        )
    if rank == 0:
        typer.echo("\n  ".join(("Next:", *_next(settings, done.directory))))


def _next(config: Config, directory: Path) -> Iterator[str]:
    """Yield commands for a finished run that can be typed as they are."""
    from bas_opd.data.records import read_manifest

    run, checked = shlex.quote(str(directory)), "budget" if config.queries else "records"
    yield f"bas-opd verify {run}   # check its {checked}"
    yield f"bas-opd report {run}   # a page of what happened"
    source = read_manifest(Path(config.data.path)).source
    if source.startswith("FineSearch"):
        version = 2 if source.startswith("FineSearch 2") else 1
        test = f"data/finesearch{version if version > 1 else ''}-test"
        if not Path(test).exists():
            yield f"bas-opd data make finesearch {test} --split test --version {version} --n 400"
        yield f"bas-opd eval {run} --bench finesearch --data finesearch={test}"
    else:
        yield "bas-opd eval --help   # accuracy on benchmarks"
    yield f"bas-opd export {run} {run}-model   # the model for transformers"


def quiet_transformers() -> None:
    """Hide its progress bars, and its advice on GPU kernels where there is no GPU."""
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    if not torch.cuda.is_available():
        logging.set_verbosity_error()
