"""`bas-opd data lmms-eval`: the benchmarks as tasks of lmms-eval."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bas_opd.cli.benchmark_options import Bench, Data


def lmms_eval(
    out: Annotated[Path, typer.Argument(help="The folder to write; it must not hold anything.")],
    bench: Bench,
    data: Data,
    partial: Annotated[
        bool, typer.Option("--partial", help="Accept a set of another size.")
    ] = False,
    max_response_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 1024,
) -> None:
    """Write benchmarks as tasks for lmms-eval's --include_path, scored as `bas-opd eval` does."""
    from rich.console import Console
    from rich.progress import Progress

    from bas_opd.evaluate.benchmarks import benchmark
    from bas_opd.evaluate.benchmarks.sources import sources
    from bas_opd.evaluate.lmms_eval.tasks import write_tasks

    places = sources(data, [name.strip() for name in bench.split(",")])
    sets = [benchmark(name).load(place, partial=partial) for name, place in places.items()]
    stderr = Console(stderr=True)
    with Progress(console=stderr, disable=not stderr.is_terminal, transient=True) as progress:
        task = progress.add_task("writing", total=sum(map(len, sets)))
        *tasks, group = write_tasks(
            sets,
            out,
            max_response_tokens=max_response_tokens,
            on_row=lambda: progress.advance(task),
        )
    typer.echo(f"{out}: {', '.join(tasks)}; together: {group}.")
    typer.echo(f"Give lmms-eval --include_path {out} --tasks {group}.")
