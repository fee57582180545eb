"""`bas-opd export`: write the trained model as a transformers checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="The folder to write; it must not exist yet.")
    ],
    dtype: Annotated[
        Literal["float32", "bfloat16"],
        typer.Option(help="float32 is exact; bfloat16 is rounded and half the size."),
    ] = "float32",
    base: Annotated[
        str | None, typer.Option(help="Path of the base model, if it has moved.")
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(help="Export the checkpoint of this step, such as the best by evaluation."),
    ] = None,
    push: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/NAME", help="Also upload it to the Hugging Face hub, as private."
        ),
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Upload it for everyone.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was written as JSON.")
    ] = False,
) -> None:
    """Export the trained student as a transformers checkpoint.

    Adapters are merged into the base model; a model card is added. --push needs a token of the hub
    in HF_TOKEN or from `hf auth login`.
    """
    import json
    from dataclasses import asdict

    from bas_opd.cli.train import quiet_transformers
    from bas_opd.commands.export import export as export_run
    from bas_opd.commands.push import find_destination
    from bas_opd.commands.push import push as upload
    from bas_opd.errors import ConfigError
    from bas_opd.text import printable

    def say(text: str) -> None:
        typer.echo(printable(text), err=True)

    quiet_transformers()
    if public and push is None:
        raise ConfigError("--public says who may see a pushed model. Add --push OWNER/NAME.")
    to = None if push is None else find_destination(push, public=public)
    done = export_run(run, out, dtype=dtype, base=base, step=step, name=push, warn=say)
    url = None if to is None else upload(out, to, say=say)
    if as_json:
        typer.echo(json.dumps({**asdict(done), "pushed": url}))
    else:
        moment = "newest checkpoint: the run has not finished"
        if done.is_final:
            moment = "final model"
        elif step is not None:
            moment = "checkpoint"
        typer.echo(f"{out}: step {done.step:,} ({moment}), {done.dtype}.")
        if url is not None:
            typer.echo(url)
