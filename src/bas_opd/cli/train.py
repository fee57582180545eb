"""`bas-opd train`: a config file, some overrides, a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    config: Annotated[Path, typer.Argument(help="TOML file, as in configs/learned25.toml.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings, as in select.query_ratio=0.1."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete the run in the directory and start anew.")
    ] = False,
    track: Annotated[
        list[str] | None,
        typer.Option(help="Also send the numbers to tensorboard, trackio or wandb; repeatable."),
    ] = None,
) -> None:
    """Train a model as a config file says. The same command again goes on where it stopped."""
    from bas_opd.config import load_config

    settings = load_config(config, overrides or ())

    # Only after the config is known to be good: this import brings torch, which takes seconds.
    from bas_opd.run import loop
    from bas_opd.run.console import Console
    from bas_opd.run.tracking import Tracked, check_trackers

    trackers = check_trackers(track or ())
    quiet_transformers()
    with Console() as console:
        loop.train(settings, Tracked(console, settings, trackers), overwrite=overwrite)


def quiet_transformers() -> None:
    """Keep its bars out of ours, and its advice on GPU kernels off machines without a GPU."""
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    if not torch.cuda.is_available():
        logging.set_verbosity_error()
