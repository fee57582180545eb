"""`bas-opd report`: the results of one run or several as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run directories, finished or not.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Output folder; unset: the run, or ./report for several."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Training data of the run, if its folder has moved."),
    ] = None,
) -> None:
    """Write the page of a run, or a comparison of several.

    report.html is one file without external resources; card.md is a summary.
    """
    from bas_opd.errors import ConfigError
    from bas_opd.report.pages.writing import write_comparison, write_report
    from bas_opd.text import printable

    if data is not None and len(runs) > 1:
        raise ConfigError(
            "--data is for the page of one run, which shows pictures; a comparison shows none. "
            "Omit it, or name a single run."
        )
    written = (
        write_report(runs[0], out or runs[0], data=data)
        if len(runs) == 1
        else write_comparison(runs, out or Path("report"))
    )
    typer.echo(printable(written.sentence))
    typer.echo(f"The page is {written.page.resolve()}, the card {written.card.resolve()}.")
