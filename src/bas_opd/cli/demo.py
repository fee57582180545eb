"""`bas-opd demo`: the whole method on a CPU, without a download, and a page of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bas_opd import disk


def demo(
    folder: Annotated[Path, typer.Option(help="The demo makes a new folder in this one.")] = Path(
        "runs"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Seed of pictures and training.")] = 0,
) -> None:
    """Train a small model two ways on a CPU, and write a page.

    It is evaluated before and after. Takes a few minutes, without a download.
    """
    home = new_folder(folder, "demo")
    typer.echo(f"The demo in {home}: loading PyTorch.")

    from bas_opd.cli.train import quiet_transformers
    from bas_opd.commands import demo as demonstration
    from bas_opd.report.demo import finding, gap, read_demo, table, write_page
    from bas_opd.text import aligned

    quiet_transformers()
    demonstration.run_demo(home, seed=seed)
    results = read_demo(home)
    page = write_page(results)
    for part in (aligned(table(results)), gap(results), "\n".join(finding(results))):
        typer.echo(f"\n{part}")
    typer.echo(f"\nThe page with pictures is {page.resolve()}; open it in a browser.")
    learned, full = home / "learned25", home / "full"
    typer.echo(
        f"For the full report of a run:\n  bas-opd report {learned}\n"
        f"For both runs side by side:\n  bas-opd compare {learned} {full}"
    )


def new_folder(parent: Path, name: str) -> Path:
    """Make parent/name-1, or the first free number; existing folders are not touched."""
    from bas_opd.errors import ConfigError

    number = 1
    try:
        disk.make_folder(parent, parents=True, exist_ok=True)
        while True:
            try:
                disk.make_folder(folder := parent / f"{name}-{number}")
            except FileExistsError:
                number += 1
            else:
                return folder
    except OSError as error:
        raise ConfigError(
            f"The demo cannot make its folder in {parent}: {error.strerror}. Name a folder that "
            "can be written to with --folder."
        ) from error
