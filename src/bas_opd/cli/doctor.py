"""`bas-opd doctor`: check whether this machine can train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def doctor(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="CONFIG", help="A preset or TOML file, to check its model and data."
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Settings, such as model.path=MODEL."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check versions, GPU, disk, model and data. Exit code 1 if there is a problem."""
    import json
    from dataclasses import asdict

    from bas_opd.commands.doctor import examine
    from bas_opd.config import load_config
    from bas_opd.text import printable

    settings = None if config is None else load_config(config, overrides or ())
    findings = examine(settings)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            line = f"{finding.level:<9}{finding.what:<14}{finding.text}"
            typer.echo(printable(line))
            if finding.mend:
                typer.echo(f"{'':<9}{'':<14}{printable(finding.mend)}")
    if any(finding.level == "problem" for finding in findings):
        raise typer.Exit(1)
