"""`bas-opd bench`: time every phase of a step on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer


def bench(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Folder, hub id, small, or qwen3.5-4b for random weights."
        ),
    ] = "small",
    parts: Annotated[
        str, typer.Option(help="What to time, joined by commas.")
    ] = "sampling,prefill,decoding,teacher,student,loss",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    prompts: Annotated[int | None, typer.Option(min=1, help="Prompts of a step.")] = None,
    rollouts: Annotated[int, typer.Option(min=1, help="Rollouts of each prompt.")] = 8,
    side: Annotated[int | None, typer.Option(min=64, help="Pictures: pixels of a side.")] = None,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of a response.")] = 24,
    ratio: Annotated[float, typer.Option(help="Share of the rows selected.")] = 0.25,
    micro_batch: Annotated[
        int, typer.Option(min=1, help="Tokens of a pass of teacher or student.")
    ] = 4096,
    repeats: Annotated[int, typer.Option(min=1, help="Timings of each side.")] = 3,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the numbers to a file.")
    ] = None,
) -> None:
    """Time each phase of a step on this machine, beside rivals."""
    from bas_opd.bench import numbers as files
    from bas_opd.bench.command import BenchRequest, measure
    from bas_opd.bench.subject import Size
    from bas_opd.cli.train import quiet_transformers
    from bas_opd.model.loading import resolve_device

    if json is not None:
        files.check_output(json)
    quiet_transformers()
    is_gpu = resolve_device(device).type == "cuda"
    command = files.command_line("bas-opd", sys.argv[1:])

    def keep(numbers: dict[str, Any]) -> None:
        if json is not None:
            files.save({"command": command, **numbers}, json)

    measure(
        BenchRequest(
            model=model,
            device=device,
            size=Size(
                prompts=prompts or (28 if is_gpu else 4),
                per_prompt=rollouts,
                side=side or (512 if is_gpu else 160),
                tokens=tokens,
                ratio=ratio,
                micro_batch=micro_batch,
            ),
            parts=[part.strip() for part in parts.split(",")],
            repeats=repeats,
        ),
        typer.echo,
        keep,
    )
    if json is not None:
        typer.echo(f"The numbers are in {json}.")
