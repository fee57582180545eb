"""`bas-opd demo`: the whole method on a CPU, without a download, with a page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    folder: Annotated[
        Path, typer.Option(help="Where the demo's folder is made; each demo gets a new one.")
    ] = Path("runs"),
    seed: Annotated[
        int, typer.Option(min=0, help="Other pictures, other draws, other numbers.")
    ] = 0,
) -> None:
    """Train a small model two ways, judge it before and after, and write a page with examples."""
    import os

    home = new_folder(folder, "demo")
    # Threads that spin while they wait make a run several times slower where another program needs
    # a core, as on anyone's laptop. Torch reads this when it is first imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

    from bas_opd.cli.train import quiet_transformers
    from bas_opd.commands import demo as demonstration
    from bas_opd.report.demo_page import write_page
    from bas_opd.report.demo_results import finding, gap, read_demo, table, text_table

    quiet_transformers()
    demonstration.run_demo(home, seed=seed)
    results = read_demo(home)
    page = write_page(results)
    for part in (text_table(table(results)), gap(results), "\n".join(finding(results))):
        typer.echo(f"\n{part}")
    typer.echo(f"\nThe page with pictures is {page.resolve()}; open it in a browser.")
    run, questions = home / "learned25", home / "data" / "test"
    typer.echo(
        "For the full report of a run:\n"
        f"  bas-opd eval {run} --bench finesearch --data finesearch={questions}\n"
        f"  bas-opd report {run}"
    )


def new_folder(parent: Path, name: str) -> Path:
    """Make parent/name-1, or the first number that is free; nothing that exists is touched."""
    from bas_opd.errors import ConfigError

    number = 1
    try:
        parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                (folder := parent / f"{name}-{number}").mkdir()
            except FileExistsError:
                number += 1
            else:
                return folder
    except OSError as error:
        raise ConfigError(
            f"The demo cannot make its folder in {parent}: {error.strerror}. Name a folder that "
            "can be written to with --folder."
        ) from error
