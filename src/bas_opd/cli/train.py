"""`bas-opd train`: train or resume a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[Path, typer.Argument(help="TOML file, such as configs/learned25.toml.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Settings, such as select.query_ratio=0.1."),
]


def train(
    config: ConfigFile,
    overrides: Overrides = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete the run in the directory and start over.")
    ] = False,
    track: Annotated[
        list[str] | None,
        typer.Option(help="Also log metrics to tensorboard, trackio or wandb; repeatable."),
    ] = None,
) -> None:
    """Train a model from a config file. Run the same command again to resume."""
    from bas_opd.config import load_config

    settings = load_config(config, overrides or ())

    # Only after the config is valid: these import torch, which takes seconds.
    from bas_opd.evaluate.during_training import evaluator
    from bas_opd.run import loop
    from bas_opd.run.console import Console
    from bas_opd.run.tracking import Tracked, check_trackers

    trackers = check_trackers(track or ())
    quiet_transformers()
    with Console() as console:
        loop.train(
            settings,
            Tracked(console, settings, trackers),
            overwrite=overwrite,
            evaluate=evaluator(settings),
        )


def quiet_transformers() -> None:
    """Hide its progress bars, and its advice on GPU kernels where there is no GPU."""
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    if not torch.cuda.is_available():
        logging.set_verbosity_error()
