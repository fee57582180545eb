"""`bas-opd watch`: show a run live from any terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def watch(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run directory; the run may still be training.")
    ],
    once: Annotated[bool, typer.Option("--once", help="Show the current state and exit.")] = False,
    every: Annotated[float, typer.Option(min=0.05, help="Seconds between refreshes.")] = 1.0,
) -> None:
    """Show a run live until it has finished. Reads only; writes nothing."""
    import contextlib

    from bas_opd.commands import watch

    with contextlib.suppress(KeyboardInterrupt):
        watch.watch(run, every=None if once else every)
