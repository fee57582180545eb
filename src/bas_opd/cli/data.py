"""`bas-opd data`: prepare, check, show and make training sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from bas_opd.cli.lmms_eval import lmms_eval

app = typer.Typer(help="Prepare, check, show and make training sets.", no_args_is_help=True)
make_app = typer.Typer(help="Draw a training set.", no_args_is_help=True)
app.add_typer(make_app, name="make")

Folder = Annotated[Path, typer.Argument(metavar="SET", help="A prepared set.")]
Out = Annotated[
    Path, typer.Argument(metavar="OUT", help="The folder to write; it must be empty or new.")
]


@app.command()
def prepare(
    src: Annotated[
        str,
        typer.Argument(
            metavar="SRC", help="A JSONL, CSV or parquet file, its folder, or a hub id."
        ),
    ],
    out: Out,
    view: Annotated[
        Literal["boxed", "clean"],
        typer.Option(help="Released pictures with or without the red box."),
    ] = "boxed",
    limit: Annotated[int | None, typer.Option(min=1, help="Read only this many rows.")] = None,
    quarantine: Annotated[
        bool, typer.Option("--quarantine", help="Set bad rows aside; more than 1 % is an error.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="Refuse prompts too long for this model.")
    ] = None,
    max_prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Longest prompt, with --model.")
    ] = 8192,
) -> None:
    """Convert a released or own data source to a prepared set."""
    from bas_opd.cli.progress import Board
    from bas_opd.data.prepare import prepare as prepare_set

    prompt_length = None
    if model is not None:
        from bas_opd.model.processing import Processor

        prompt_length = Processor.load(model).prompt_length
    with Board() as board:
        board.start(limit, "rows")
        done = prepare_set(
            src,
            out,
            view=view,
            limit=limit,
            quarantine=quarantine,
            prompt_length=prompt_length,
            max_prompt_tokens=max_prompt_tokens,
            on_row=board.advance,
        )
    typer.echo(f"{out}: {done.rows:,} rows, {done.with_crop:,} with a crop.")
    if done.rejected:
        typer.echo(f"{done.rejected:,} rows were set aside in {out / 'rejected.jsonl'}.")


@app.command()
def check(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Verify a prepared set: every hash, row and picture.

    The exit code is 4 if one is wrong.
    """
    import json
    from dataclasses import asdict

    from bas_opd.data.check import check as check_set
    from bas_opd.text import printable

    report = check_set(folder)
    if as_json:
        typer.echo(json.dumps(asdict(report)))
    else:
        kinds = ", ".join(f"{kind or 'no kind'} {count:,}" for kind, count in report.kinds.items())
        share = report.with_crop / max(report.rows, 1)
        rows = f"{report.rows:,} rows ({printable(kinds)})"
        typer.echo(f"{folder}: {rows}, {report.pictures:,} pictures.")
        typer.echo(f"{report.with_crop:,} rows ({share:.1%}) have a crop.")
        for problem in report.problems:
            typer.echo(f"Problem: {printable(problem)}")
        typer.echo("The set is sound." if report.is_sound else "The set is not sound.")
    if not report.is_sound:
        raise typer.Exit(4)


@app.command()
def show(
    folder: Folder,
    row: Annotated[str, typer.Argument(metavar="ROW", help="A row number from 1, or an id.")],
    out: Annotated[Path | None, typer.Option(help="Where to write the PNG.")] = None,
) -> None:
    """Print one record, and draw its picture and crop."""
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    from bas_opd.data.records import PreparedSet
    from bas_opd.data.show import find_example, side_by_side
    from bas_opd.text import printable

    number, example = find_example(PreparedSet.load(folder), row)
    target = out or Path(f"{folder.resolve().name}-row-{number}.png")
    side_by_side(example).save(target, "PNG")
    crop = example.crop
    lines = {
        "id": example.id,
        "kind": example.kind,
        "question": example.question,
        "answer": example.answer,
        "image": str(example.image),
        "crop": "none" if crop is None else f"{crop.box or crop.image}, area {crop.area:.2%}",
    }
    body = Text("\n".join(f"{name:<9}{printable(value)}" for name, value in lines.items()))
    Console().print(Panel(body, title=f"row {number}", title_align="left"))
    typer.echo(f"Picture: {target}")


@app.command()
def sheet(
    folder: Folder,
    out: Annotated[Path | None, typer.Option(help="Where to write the PNG.")] = None,
    n: Annotated[int, typer.Option("--n", min=1, help="Number of examples.")] = 24,
) -> None:
    """Draw many examples on one sheet.

    Each has its crop box, crop, question and answer.
    """
    from bas_opd.data.records import PreparedSet
    from bas_opd.data.show import contact_sheet

    examples = PreparedSet.load(folder).examples[:n]
    target = out or Path(f"{folder.resolve().name}-sheet.png")
    contact_sheet(examples).save(target, "PNG")
    typer.echo(f"Sheet of {len(examples)} examples: {target}")


@make_app.command()
def finesearch(
    out: Out,
    split: Annotated[
        Literal["train", "val", "test"], typer.Option(help="Split of drawings and backgrounds.")
    ],
    version: Annotated[
        int,
        typer.Option(min=1, max=2, help="FineSearch 1 or 2; in 2, every question has a crop."),
    ] = 1,
    size: Annotated[Literal["small", "large"], typer.Option(help="Size of things.")] = "small",
    n: Annotated[int, typer.Option("--n", min=1, help="Number of examples.")] = 3120,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the pictures.")] = 0,
    kinds: Annotated[
        str | None, typer.Option(help="Kinds, as in attribute,count; unset: all.")
    ] = None,
    backgrounds: Annotated[
        Path | None, typer.Option(help="Folder of your own backgrounds.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; unset: one per core.")
    ] = None,
) -> None:
    """Draw small things in large pictures, with questions."""
    import os

    from bas_opd.cli.progress import Board
    from bas_opd.data.finesearch import make_finesearch

    with Board() as board:
        board.start(n, "drawing")
        made = make_finesearch(
            out,
            split=split,
            size=size,
            n=n,
            seed=seed,
            kinds=None if kinds is None else [kind.strip() for kind in kinds.split(",")],
            backgrounds=backgrounds,
            workers=workers or os.cpu_count() or 1,
            version="finesearch" if version == 1 else "finesearch2",
            on_row=board.advance,
        )
    with_crop = sum(example.has_crop for example in made.examples)
    typer.echo(f"{out}: {len(made):,} rows, {with_crop:,} with a crop.")


app.command("lmms-eval")(lmms_eval)
