"""`bas-opd reproduce`: the paper's tables and figures, and the runs behind them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bas_opd.reproduce.forecast import Forecast

app = typer.Typer(no_args_is_help=True)

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings of every run.")
]
Seeds = Annotated[int, typer.Option(min=1, help="Runs of each arm.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs in parallel; unset: one per CPU core.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, or a torch device.")]
Data = Annotated[
    Path | None,
    typer.Option(resolve_path=True, help="Folder with train, val and test; unset: OUT/data."),
]
Base = Annotated[
    Path | None,
    typer.Option(resolve_path=True, help="Base model; unset: the small one that is included."),
]
TrainN = Annotated[int, typer.Option(min=1, help="Training examples.")]
TestN = Annotated[int, typer.Option(min=1, help="Test questions.")]


Yes = Annotated[bool, typer.Option("--yes", help="Start long work without asking.")]


def _confirm(yes: bool) -> Callable[[Forecast], None]:
    """Return how the user is told what will run, and is asked if it takes minutes."""

    def confirm(forecast: Forecast) -> None:
        from bas_opd.errors import ConfigError

        typer.echo(forecast.text, err=True)
        if yes or not forecast.must_ask:
            return
        if not sys.stdin.isatty():
            raise ConfigError("This takes more than a few minutes. Add --yes to start it.")
        typer.confirm("Start?", abort=True, err=True)

    return confirm


class Scale(StrEnum):
    """Size of the runs."""

    small = "small"
    paper = "paper"


@app.callback(invoke_without_command=True)
def _reproduce(
    listed: Annotated[
        bool,
        typer.Option("--list", help="List the paper's tables and figures, and which can be made."),
    ] = False,
) -> None:
    """Make the paper's tables and figures, and the runs behind them.

    NAME is one of table1 to table8 and figure0 to figure5, as in `bas-opd reproduce figure3 --out
    DIR`; --list says what each shows. Above a few minutes it asks first; --yes does not.
    """
    if listed:
        from bas_opd.reproduce.catalogue import listing

        typer.echo(listing())


@app.command()
def policies(
    out: Annotated[
        Path, typer.Option(resolve_path=True, help="Folder for data, runs and results.")
    ],
    overrides: Overrides = None,
    scale: Annotated[str, typer.Option(help="small: FineSearch and the small model.")] = "small",
    arms: Annotated[
        str | None,
        typer.Option(help="Arms to run, as in full,fewer2; unset: the paper's and regressed25."),
    ] = None,
    seeds: Seeds = 5,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps per run; unset: 111.")] = None,
    jobs: Jobs = None,
    device: Device = "auto",
    data: Data = None,
    base: Base = None,
    train_n: TrainN = 3120,
    test_n: TestN = 4200,
    yes: Yes = False,
    lr_sweep: Annotated[
        str | None,
        typer.Option(help="Instead, compare learning rates on val, as in 3e-5,1e-4."),
    ] = None,
) -> None:
    """Train every policy over several seeds and print the table. Rerun to resume."""
    from bas_opd.cli.progress import Board
    from bas_opd.reproduce import policies as reproduction

    request = reproduction.Request(
        out=out,
        scale=scale,
        arms=_names(arms),
        seeds=seeds,
        jobs=jobs,
        device=device,
        data=data,
        base=base,
        train_n=train_n,
        test_n=test_n,
        rates=lr_sweep,
        confirm=_confirm(yes),
        overrides=(*(overrides or ()), *([] if steps is None else [f"run.steps={steps}"])),
    )
    with Board() as board:
        table = reproduction.reproduce(request, board)
    typer.echo(table, nl=False)


@app.command()
def study(
    file: Annotated[
        Path, typer.Argument(metavar="STUDY", resolve_path=True, help="The study, a TOML file.")
    ],
    out: Annotated[
        Path, typer.Option(resolve_path=True, help="Folder for data, runs and results.")
    ],
    arms: Annotated[
        str | None, typer.Option(help="Arms to run now, as in full,fewer2; unset: all.")
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="Seeds to run now, as in 0-7; unset: all. Of a sweep: its seeds."),
    ] = None,
    jobs: Jobs = None,
    device: Device = "auto",
    data: Data = None,
    yes: Yes = False,
    lr_sweep: Annotated[
        str | None,
        typer.Option(help="Instead, compare learning rates of every arm on val, as in 3e-5,1e-4."),
    ] = None,
) -> None:
    """Run a study as its file declares it. Rerun to resume."""
    from bas_opd.cli.progress import Board
    from bas_opd.reproduce.policies import Request, reproduce
    from bas_opd.reproduce.study import parse_seeds, read_study

    request = Request.of_study(
        read_study(file),
        out=out,
        arms=_names(arms),
        seeds=None if seeds is None else parse_seeds(seeds),
        jobs=jobs,
        device=device,
        data=data,
        rates=lr_sweep,
        confirm=_confirm(yes),
    )
    with Board() as board:
        text = reproduce(request, board)
    typer.echo(text, nl=False)


def _names(arms: str | None) -> tuple[str, ...] | None:
    return None if arms is None else tuple(arm.strip() for arm in arms.split(","))


@app.command()
def table(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of results (*.json), or the one above.")
    ],
    write: Annotated[
        Path | None, typer.Option(help="Write the table into this Markdown file instead.")
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(help="Also draw accuracy and total tokens to FIGURE.svg and FIGURE.pdf."),
    ] = None,
) -> None:
    """Print the table of policies or of a study from its results."""
    from bas_opd.reproduce.table import folder_table, write_table

    text = folder_table(folder)
    if figure is not None:
        from bas_opd.report.charts.printed import save
        from bas_opd.reproduce.catalogue import cost_figure

        save(cost_figure(folder), figure)
    if write is None:
        typer.echo(text, nl=False)
    else:
        write_table(write, text)
        typer.echo(f"Updated the table in {write} from {folder}.")


def _command(name: str) -> None:
    """Add the command of one table or figure."""

    @app.command(name, help=f"Make {name} of the paper.", hidden=True)
    def make(
        out: Annotated[
            Path, typer.Option(resolve_path=True, help="Folder for runs, tables and figures.")
        ],
        overrides: Overrides = None,
        scale: Annotated[
            Scale, typer.Option(help="small: train what is missing. paper: print the commands.")
        ] = Scale.small,
        run: Annotated[
            list[Path] | None, typer.Option(help="Use this run instead; repeatable.")
        ] = None,
        results: Annotated[
            Path | None, typer.Option(help="Use results (*.json) in this folder instead.")
        ] = None,
        seeds: Seeds = 5,
        jobs: Jobs = None,
        device: Device = "auto",
        data: Data = None,
        base: Base = None,
        train_n: TrainN = 3120,
        test_n: TestN = 4200,
        yes: Yes = False,
    ) -> None:
        from bas_opd.cli.progress import Board
        from bas_opd.reproduce.catalogue import make_item
        from bas_opd.reproduce.policies import Request

        request = Request(
            out=out,
            scale=scale.value,
            seeds=seeds,
            jobs=jobs,
            device=device,
            data=data,
            base=base,
            train_n=train_n,
            test_n=test_n,
            overrides=tuple(overrides or ()),
            confirm=_confirm(yes),
        )
        with Board() as board:
            text = make_item(name, request, board, runs=tuple(run or ()), results=results)
        typer.echo(text)


for _name in (*(f"table{n}" for n in range(1, 9)), *(f"figure{n}" for n in range(6))):
    _command(_name)
