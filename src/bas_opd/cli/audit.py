"""`bas-opd audit`: how good the selector is, and what its choice does to the gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def audit(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    only: Annotated[
        Literal["utility", "geometry"] | None, typer.Option(help="Make only this part.")
    ] = None,
    batches: Annotated[int, typer.Option(min=1, max=40, help="Batches to score completely.")] = 10,
    held_out: Annotated[Path | None, typer.Option(help="Also audit this prepared set.")] = None,
    checkpoints: Annotated[
        int, typer.Option(min=1, help="Checkpoints to compare gradients at.")
    ] = 6,
    pairs: Annotated[int, typer.Option(min=1, help="Batches per checkpoint.")] = 20,
    teacher: Annotated[
        Literal["own", "student"], typer.Option(help="student: in place of a lost teacher.")
    ] = "own",
    device: Annotated[str, typer.Option(help="auto, or a torch device.")] = "auto",
    data: Annotated[Path | None, typer.Option(help="The training data, if it has moved.")] = None,
    base: Annotated[str | None, typer.Option(help="The base model, if it has moved.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Measure the utility of all candidates and compare gradients.

    Results in RUN/audit are kept, and only printed. With --teacher student the student stands in
    for a teacher that no checkpoint holds, as in the paper.
    """
    import json

    from bas_opd.audit.session import Request, audit_run
    from bas_opd.audit.summary import geometry_data, geometry_text, utility_data, utility_text
    from bas_opd.cli.progress import Board
    from bas_opd.cli.train import quiet_transformers
    from bas_opd.text import printable

    quiet_transformers()
    request = Request(
        run=run,
        only=only,
        batches=batches,
        held_out=held_out,
        checkpoints=checkpoints,
        pairs=pairs,
        teacher=teacher,
        device=device,
        data=data,
        base=base,
    )
    with Board() as board:
        done = audit_run(request, board)
    if as_json:
        results = {
            "utility": {each.source: utility_data(each) for each in done.utility},
            "geometry": None if done.geometry is None else geometry_data(done.geometry),
            "no_geometry": done.no_geometry,
        }
        typer.echo(json.dumps(results, allow_nan=False))
        return
    parts = [utility_text(each) for each in done.utility]
    if done.geometry is not None:
        parts.append(geometry_text(done.geometry))
    if done.no_geometry is not None:
        parts.append(f"No gradients compared. {done.no_geometry}")
    typer.echo(printable("\n\n".join(parts)))
