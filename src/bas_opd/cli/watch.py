"""`bas-opd watch`: look on while a run trains, from any terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def watch(
    run: Annotated[Path, typer.Argument(help="A run directory, of a run that may be going on.")],
    once: Annotated[bool, typer.Option("--once", help="Show how it stands, and end.")] = False,
    every: Annotated[float, typer.Option(min=0.05, help="Seconds between looks.")] = 1.0,
) -> None:
    """Show a run as its records grow, until it has finished. It reads; it never writes."""
    import contextlib

    from bas_opd.commands.watch import follow, show_once

    with contextlib.suppress(KeyboardInterrupt):
        show_once(run) if once else follow(run, every=every)
