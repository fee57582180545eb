"""`bas-opd eval`: the paper's benchmarks for a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

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


def eval_(
    model: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run, a model's folder, or a served model's name."),
    ],
    bench: Bench,
    data: Data,
    out: Annotated[
        Path | None,
        typer.Option(help="Output folder; default: RUN/eval, or a folder in eval/ for a model."),
    ] = None,
    base: Annotated[
        bool,
        typer.Option(
            "--base",
            help="Evaluate the model that RUN started from, in RUN/eval-base: the report shows it "
            "beside the trained one.",
        ),
    ] = False,
    only: Annotated[
        Literal["generate", "score", "report"] | None, typer.Option(help="Run this step only.")
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Accept a set of a different size; results say so.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, or a torch device.")] = "auto",
    batch: Annotated[int, typer.Option(min=1, help="Questions asked in parallel.")] = 16,
    max_response_tokens: Annotated[int, typer.Option(min=1, help="Tokens per answer.")] = 1024,
    max_pixels: Annotated[
        int | None, typer.Option(min=1, help="Pixel limit of a picture; default: the model's own.")
    ] = None,
    server: Annotated[
        str | None, typer.Option(help="OpenAI-compatible address of a served model.")
    ] = None,
    server_key: Annotated[
        str, typer.Option(help="Name of the environment variable with its key.")
    ] = "",
    server_weights: Annotated[
        str,
        typer.Option(help="Label of the served weights; other labels do not share answers."),
    ] = "",
    server_extra: Annotated[
        str, typer.Option(help="JSON object of extra request fields, as to switch off thinking.")
    ] = "{}",
    judge: Annotated[
        str | None, typer.Option(help="Address of a judge for answers that no rule can read.")
    ] = None,
    judge_model: Annotated[str, typer.Option(help="Name of the judge model at that address.")] = "",
    judge_key: Annotated[
        str, typer.Option(help="Name of the environment variable with its key.")
    ] = "",
    judge_extra: Annotated[
        str, typer.Option(help="JSON object of extra fields in its requests.")
    ] = "{}",
    judge_requests: Annotated[
        int | None,
        typer.Option(min=1, help="Most requests to the judge, earlier commands included."),
    ] = None,
    judge_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Most tokens of the judge, earlier commands included."),
    ] = None,
) -> None:
    """Evaluate a model on benchmarks and print the table.

    Rerun to resume; finished questions are not asked again, and verdicts are not paid for again.
    """
    from bas_opd.cli.progress import Board
    from bas_opd.errors import ConfigError
    from bas_opd.evaluate.benchmarks.sources import sources
    from bas_opd.evaluate.command import Request, base_of, evaluate_model
    from bas_opd.serving.client import Spending
    from bas_opd.serving.endpoint import Endpoint

    if judge is not None and not judge_model:
        raise ConfigError("--judge needs the name of a model too. Add --judge-model NAME.")
    if base and server is not None:
        raise ConfigError("--base is the model that a run started from, not one behind a server.")
    names = [name.strip() for name in bench.split(",")]
    if base:
        model, folder = base_of(Path(model))
        out = out or folder
    request = Request(
        model=model,
        benchmarks=names,
        data=sources(data, names),
        out=out or _default_out(model),
        only=only,
        partial=partial,
        device=device,
        batch=batch,
        max_response_tokens=max_response_tokens,
        max_pixels=max_pixels,
        server=None
        if server is None
        else Endpoint(
            url=server,
            model=model,
            key_variable=server_key,
            extra=_fields("--server-extra", server_extra),
            at_once=batch,
        ),
        server_weights=server_weights,
        judge=None
        if judge is None
        else Endpoint(
            url=judge,
            model=judge_model,
            key_variable=judge_key,
            extra=_fields("--judge-extra", judge_extra),
        ),
        spending=Spending(max_requests=judge_requests, max_tokens=judge_tokens),
    )
    with Board() as board:
        text = evaluate_model(request, board)
    typer.echo(text or f"This step is done; its files are in {request.out}.", nl=not text)


def _fields(option: str, text: str) -> dict[str, Any]:
    from bas_opd.errors import ConfigError
    from bas_opd.validation import extra_fields

    try:
        return extra_fields(text)
    except ValueError as error:
        raise ConfigError(f"{option} {error}.") from None


def _default_out(model: str) -> Path:
    """Return a folder named after the whole path, since many models share its last part."""
    run = Path(model).expanduser()
    if (run / "records.jsonl").exists():
        return run / "eval"
    return Path("eval") / "-".join(part for part in run.parts if part not in (run.anchor, ".."))
