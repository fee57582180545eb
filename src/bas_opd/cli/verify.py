"""`bas-opd verify`: check the budget, records and checksums of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SHOWN = 5


def verify(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Accept a run that has steps left.")
    ] = False,
    draws: Annotated[
        bool,
        typer.Option(
            "--draws", help="Also repeat the random draws and the predictions; imports torch."
        ),
    ] = False,
    data: Annotated[
        Path | None, typer.Option(help="The training data, if its folder has moved.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Recompute budget, selection, ledger and checksums. Exit code 4 if one is wrong."""
    import json
    from dataclasses import asdict

    from bas_opd.run.verify import verify as verify_run
    from bas_opd.text import printable

    result = verify_run(run, unfinished=unfinished, draws=draws, data=data)
    if as_json:
        typer.echo(json.dumps({**asdict(result), "is_sound": result.is_sound}))
    else:
        for check in result.checks:
            typer.echo(
                f"{check.name:<12}{'ok' if check.is_sound else 'FAILED':<8}{check.note}".rstrip()
            )
            for problem in check.problems[:SHOWN]:
                typer.echo(f"    {printable(problem)}")
            if len(check.problems) > SHOWN:
                typer.echo(f"    and {len(check.problems) - SHOWN:,} more")
        for remark in result.remarks:
            typer.echo(printable(remark))
        typer.echo(f"{run}: {'sound' if result.is_sound else 'NOT sound'}.")
    if not result.is_sound:
        raise typer.Exit(4)
