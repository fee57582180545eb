"""`bas-opd demo`: the whole algorithm on a CPU, without a download."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PICTURES = 32


def demo(
    folder: Annotated[
        Path, typer.Option(help="Where the demo's folder is made; each demo gets a new one.")
    ] = Path("runs"),
) -> None:
    """Train a small random model on generated pictures for a few steps and show the ledger."""
    from bas_opd import loop
    from bas_opd.cli.train import quiet_transformers
    from bas_opd.config import load_config, preset
    from bas_opd.data.pictures import make_pictures
    from bas_opd.model.small import build_small_model
    from bas_opd.runtime.console import Console

    quiet_transformers()
    home = new_folder(folder, "demo")
    with Console() as console:
        console.message(f"Drawing pictures and building a small model in {home}.")
        make_pictures(home / "data", n=PICTURES, seed=0)
        build_small_model(home / "model", family="qwen3_5", seed=0)
        config = load_config(
            preset("tiny"),
            [
                f"model.path={home / 'model'}",
                f"data.path={home / 'data'}",
                f"run.output={home / 'run'}",
            ],
        )
        loop.train(config, console)


def new_folder(parent: Path, name: str) -> Path:
    """Make parent/name-1, or the first number that is free; nothing that exists is touched."""
    parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        folder = parent / f"{name}-{number}"
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder
