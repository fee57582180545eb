"""`bas-opd data lmms-eval`: the benchmarks as tasks of lmms-eval."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bas_opd.cli.eval import Bench, Data


def lmms_eval(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="The folder to write; it must be new or empty.")
    ],
    bench: Bench,
    data: Data,
    partial: Annotated[
        bool, typer.Option("--partial", help="Accept a set of a different size.")
    ] = False,
    max_response_tokens: Annotated[int, typer.Option(min=1, help="Tokens per answer.")] = 1024,
) -> None:
    """Write benchmarks as tasks for lmms-eval.

    Give the folder to its --include_path; answers are scored as in `bas-opd eval`.
    """
    from bas_opd.cli.progress import Board
    from bas_opd.evaluate.benchmarks import benchmark
    from bas_opd.evaluate.benchmarks.sources import sources
    from bas_opd.evaluate.lmms_eval.tasks import write_tasks

    places = sources(data, [name.strip() for name in bench.split(",")])
    sets = [benchmark(name).load(place, partial=partial) for name, place in places.items()]
    with Board() as board:
        *tasks, group = write_tasks(
            sets, out, max_response_tokens=max_response_tokens, progress=board
        )
    typer.echo(f"{out}: {', '.join(tasks)}; together: {group}.")
    typer.echo(f"Give lmms-eval --include_path {out} --tasks {group}.")
