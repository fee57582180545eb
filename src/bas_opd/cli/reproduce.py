"""`bas-opd reproduce`: the paper's tables and figures, and the runs behind them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True)

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings of every run.")
]
Seeds = Annotated[int, typer.Option(min=1, help="Runs of each arm.")]
Jobs = Annotated[
    int | None, typer.Option(min=1, help="Runs side by side; unset: one for each CPU core.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, or a torch device.")]
Data = Annotated[Path | None, typer.Option(help="Folder of train, val and test; unset: OUT/data.")]
Base = Annotated[
    Path | None, typer.Option(help="Model to start from; unset: the one that is shipped.")
]
TrainN = Annotated[int, typer.Option(min=1, help="Examples to train on.")]
TestN = Annotated[int, typer.Option(min=1, help="Questions to judge by.")]


class Scale(StrEnum):
    """How large the runs are."""

    small = "small"
    paper = "paper"


@app.callback(invoke_without_command=True)
def _reproduce(
    listed: Annotated[
        bool, typer.Option("--list", help="Show the paper's tables and figures, and which exist.")
    ] = False,
) -> None:
    """Make the paper's tables and figures from runs: table1 to table8, figure0 to figure5."""
    if listed:
        from bas_opd.reproduce.listing import listing

        typer.echo(listing())


@app.command()
def policies(
    out: Annotated[Path, typer.Option(help="Where data, runs and results go.")],
    overrides: Overrides = None,
    scale: Annotated[str, typer.Option(help="small: FineSearch and the small model.")] = "small",
    arms: Annotated[
        str | None, typer.Option(help="Only these, as in full,learned25; unset: all twelve.")
    ] = None,
    seeds: Seeds = 5,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of a run; unset: 111.")] = None,
    jobs: Jobs = None,
    device: Device = "auto",
    data: Data = None,
    base: Base = None,
    train_n: TrainN = 3120,
    test_n: TestN = 4200,
    lr_sweep: Annotated[
        str | None,
        typer.Option(help="Instead, judge these learning rates on val, as in 3e-5,1e-4."),
    ] = None,
) -> None:
    """Train every policy over several seeds and print the table. Again, it goes on."""
    import os

    from bas_opd.cli.progress import Board
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
    with Board() as board:
        table = reproduction.reproduce(request, board)
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


def _command(name: str) -> None:
    """Add the command of one table or figure."""

    @app.command(name, help=f"Make {name} of the paper.", hidden=True)
    def make(
        out: Annotated[Path, typer.Option(help="Where runs, tables and figures go.")],
        overrides: Overrides = None,
        scale: Annotated[
            Scale, typer.Option(help="small: trains what is missing. paper: says what to run.")
        ] = Scale.small,
        run: Annotated[
            list[Path] | None, typer.Option(help="Make it of this run instead; repeatable.")
        ] = None,
        results: Annotated[
            Path | None, typer.Option(help="Make it of results (*.json) that were kept.")
        ] = None,
        seeds: Seeds = 5,
        jobs: Jobs = None,
        device: Device = "auto",
        data: Data = None,
        base: Base = None,
        train_n: TrainN = 3120,
        test_n: TestN = 4200,
    ) -> None:
        import os

        from bas_opd.cli.progress import Board
        from bas_opd.reproduce.making import make_item
        from bas_opd.reproduce.policies import Request

        request = Request(
            out=out.resolve(),
            scale=scale.value,
            seeds=seeds,
            jobs=jobs or os.cpu_count() or 1,
            device=device,
            data=data,
            base=base,
            train_n=train_n,
            test_n=test_n,
            overrides=tuple(overrides or ()),
        )
        with Board() as board:
            told = make_item(name, request, board, runs=tuple(run or ()), results=results)
        typer.echo(told)


for _name in (*(f"table{n}" for n in range(1, 9)), *(f"figure{n}" for n in range(6))):
    _command(_name)
