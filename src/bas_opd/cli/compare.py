"""`bas-opd compare`: several runs in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Two runs or more.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Compare cost and accuracy of runs, with statistics."""
    import json

    from bas_opd.errors import ConfigError
    from bas_opd.report.comparison import compare_runs
    from bas_opd.report.pages.comparison_text import comparison_data, comparison_text
    from bas_opd.report.run import read_run
    from bas_opd.text import printable

    if len(runs) < 2:
        raise ConfigError("A comparison takes two runs or more. Name another, as in `RUN RUN`.")
    comparison = compare_runs([read_run(run) for run in runs])
    if as_json:
        typer.echo(json.dumps(comparison_data(comparison), allow_nan=False))
    else:
        typer.echo(printable(comparison_text(comparison)))
