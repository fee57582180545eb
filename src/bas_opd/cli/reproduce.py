"""`bas-opd reproduce`: the runs behind a table, and the table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.progress import Progress

app = typer.Typer(help="Make the tables of this project again.", no_args_is_help=True)


@app.command()
def policies(
    out: Annotated[Path, typer.Option(help="Where data, runs and results go.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings of every run."),
    ] = None,
    scale: Annotated[str, typer.Option(help="small: FineSearch and the small model.")] = "small",
    arms: Annotated[
        str | None, typer.Option(help="Only these, as in full,learned25; unset: all twelve.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each arm.")] = 5,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of a run; unset: 111.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs side by side; unset: one for each CPU core.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, or a torch device.")] = "auto",
    data: Annotated[
        Path | None, typer.Option(help="Folder of train, val and test; unset: OUT/data.")
    ] = None,
    base: Annotated[
        Path | None, typer.Option(help="Model to start from; unset: the one that is shipped.")
    ] = None,
    train_n: Annotated[int, typer.Option(min=1, help="Examples to train on.")] = 3120,
    test_n: Annotated[int, typer.Option(min=1, help="Questions to judge by.")] = 4200,
    lr_sweep: Annotated[
        str | None,
        typer.Option(help="Instead, judge these learning rates on val, as in 3e-5,1e-4."),
    ] = None,
) -> None:
    """Train every policy over several seeds and print the table. Again, it goes on."""
    import os

    from bas_opd.reproduce import policies as reproduction

    request = reproduction.Request(
        out=out,
        scale=scale,
        arms=None if arms is None else tuple(arm.strip() for arm in arms.split(",")),
        seeds=seeds,
        jobs=jobs or os.cpu_count() or 1,
        device=device,
        data=data,
        base=base,
        train_n=train_n,
        test_n=test_n,
        rates=lr_sweep,
        overrides=(*(overrides or ()), *([] if steps is None else [f"run.steps={steps}"])),
    )
    with _bar() as progress:
        table = reproduction.reproduce(request, _Board(progress))
    typer.echo(table, nl=False)


@app.command()
def table(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of results (*.json).")],
    write: Annotated[
        Path | None, typer.Option(help="Replace the table of this Markdown file instead.")
    ] = None,
) -> None:
    """Print the table of policies from results alone."""
    from bas_opd.reproduce.results import read_results
    from bas_opd.reproduce.table import policies_table, write_table

    text = policies_table(read_results(folder))
    if write is None:
        typer.echo(text, nl=False)
    else:
        write_table(write, text)
        typer.echo(f"The table in {write} is that of {folder}.")


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    stderr = Console(stderr=True, markup=False, highlight=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=stderr, disable=not stderr.is_terminal, transient=True)


class _Board:
    """A bar of steps on a terminal, and a line for each run anywhere."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bar = None

    def start(self, steps: int) -> None:
        self._bar = self._progress.add_task("steps", total=steps)

    def advance(self, steps: int) -> None:
        if self._bar is not None:
            self._progress.advance(self._bar, steps)

    def message(self, text: str) -> None:
        from bas_opd.runtime.console import printable

        self._progress.console.print(printable(text), soft_wrap=True)
