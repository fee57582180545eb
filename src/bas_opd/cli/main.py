"""The `bas-opd` command. Only commands that compute import torch; the help does not."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import bas_opd
from bas_opd.cli import (
    audit,
    compare,
    data,
    demo,
    doctor,
    eval,
    export,
    plan,
    report,
    reproduce,
    train,
    verify,
    watch,
)
from bas_opd.errors import BasOpdError


class _Commands(TyperGroup):
    """Prints a `BasOpdError` as its message and exits with its code."""

    # Newer versions of typer vendor click, and its context has no public type there.
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BasOpdError as error:
            if ctx.params["debug"]:
                raise
            from bas_opd.text import printable

            typer.echo(f"bas-opd: {printable(str(error))}", err=True)
            raise typer.Exit(error.exit_code) from None


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"bas-opd {bas_opd.__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    # Plain tracebacks: the decorated ones print local variables, which may hold a user's data.
    pretty_exceptions_enable=False,
    # Plain help is the same with and without a terminal, and needs no import of rich.
    rich_markup_mode=None,
)


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", envvar="BAS_OPD_DEBUG", help="Show the traceback of an error."),
    ] = False,
) -> None:
    """Budget-aware selective on-policy self-distillation for vision-language models."""


app.add_typer(data.app, name="data")
app.command()(plan.plan)
app.command()(train.train)
app.command()(watch.watch)
app.command()(verify.verify)
app.command()(export.export)
app.command("eval")(eval.eval_)
app.command()(audit.audit)
app.command()(report.report)
app.command()(compare.compare)
app.command()(doctor.doctor)
app.command()(demo.demo)
app.add_typer(reproduce.app, name="reproduce")
