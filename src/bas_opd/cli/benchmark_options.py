"""Options that commands on benchmarks share."""

from __future__ import annotations

from typing import Annotated

import typer

Bench = Annotated[
    str,
    typer.Option(
        help="Names among vstar, zoombench, hrbench4k, mmvp, cvbench, mmstar, pope and "
        "finesearch, as in vstar,pope."
    ),
]
Data = Annotated[
    list[str],
    typer.Option(
        help="A folder with a subfolder per benchmark, or NAME=FOLDER, or NAME=HUB_ID, as in "
        "mmstar=Lin-Chen/MMStar."
    ),
]
