"""`bas-opd export`: the trained model as a plain transformers folder."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Dtype(StrEnum):
    """How weights are stored."""

    float32 = "float32"
    bfloat16 = "bfloat16"


def export(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    out: Annotated[Path, typer.Argument(help="The folder to write; it must not exist yet.")],
    dtype: Annotated[
        Dtype, typer.Option(help="float32 is exact; bfloat16 is half the size, and rounded.")
    ] = Dtype.float32,
    base: Annotated[
        str | None, typer.Option(help="Where the base model lies now, if it has moved.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was written as JSON.")
    ] = False,
) -> None:
    """Write the student of a run for use with transformers, adapters merged, with a model card."""
    import json
    from dataclasses import asdict

    from bas_opd.cli.train import quiet_transformers
    from bas_opd.commands.export import export as export_run
    from bas_opd.text import printable

    quiet_transformers()
    done = export_run(
        run,
        out,
        dtype=dtype.value,
        base=base,
        warn=lambda text: typer.echo(printable(text), err=True),
    )
    if as_json:
        typer.echo(json.dumps(asdict(done)))
    else:
        moment = "final model" if done.is_final else "newest checkpoint: the run has not finished"
        typer.echo(f"{out}: step {done.step:,} ({moment}), {done.dtype}.")
