"""The options of every command that reads benchmarks."""

from __future__ import annotations

from typing import Annotated

import typer

Bench = Annotated[
    str,
    typer.Option(
        help="Some of vstar, zoombench, hrbench4k, mmvp, cvbench, mmstar, pope and finesearch, "
        "as in vstar,pope."
    ),
]
Data = Annotated[
    list[str],
    typer.Option(
        help="A folder with one for each benchmark, or NAME=FOLDER, or NAME=HUB_ID, as in "
        "mmstar=Lin-Chen/MMStar."
    ),
]
