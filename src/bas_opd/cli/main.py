"""The `bas-opd` command. Only commands that compute import torch; the help does not."""

from __future__ import annotations

import io
import os
import sys
import traceback
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import bas_opd
from bas_opd.cli import (
    audit,
    bench,
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
from bas_opd.compute.explaining import explanation, is_explained
from bas_opd.errors import BasOpdError, ConfigError, FailedRank


class _Commands(TyperGroup):
    """Prints what a user can cause as one message, without a traceback, and exits with its code.

    That is every `BasOpdError`, every failure of a file or of the output, and full memory.
    """

    def main(self, *args: Any, **kwargs: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # e.g. ± on a terminal without it
                stream.reconfigure(errors="backslashreplace")
        try:
            return super().main(*args, **kwargs)
        except OSError as error:  # of the help, which is printed before a command begins
            sys.exit(_fail(error))

    # Newer versions of typer vendor click, and its context has no public type there.
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (BasOpdError, OSError, RuntimeError, MemoryError) as error:
            if not is_explained(error):
                raise
            if isinstance(error, BrokenPipeError):
                raise
            if ctx.params["debug"]:
                traceback.print_exc()
            raise typer.Exit(_fail(error)) from None
        except KeyboardInterrupt:
            typer.echo("\nbas-opd: Interrupted by Ctrl-C before the command was done.", err=True)
            raise
        except Exception as error:
            setting = getattr(error, "option_name", "").lstrip("-")  # of click's NoSuchOption
            if "." in setting:
                hint = f"A setting is written without dashes: {setting}=VALUE."
                error.message = f"{error.message}. {hint}"  # pyright: ignore[reportAttributeAccessIssue]
            raise


def _fail(error: Exception) -> int:
    """Print the message of an error, and return the exit code.

    Of several processes that end with it together, the leader prints it.
    """
    if not isinstance(error, BasOpdError):
        _say(error)
        return 1
    cause = error.__cause__
    if isinstance(error, FailedRank) and isinstance(cause, Exception) and not is_explained(cause):
        traceback.print_exception(cause)
    if error.rendezvous is None:
        _say(error)
    else:
        error.rendezvous.say(partial(_say, error))
    return error.exit_code


def _say(error: Exception) -> None:
    from bas_opd.compute.world import launched
    from bas_opd.text import printable

    rank = 0
    with suppress(ConfigError):
        rank, _ = launched()
    place = f" (rank {rank})" if rank else ""
    typer.echo(f"bas-opd{place}: {printable(explanation(error))}", err=True)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"bas-opd {bas_opd.__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    # bas-opd --install-completion
    add_completion=True,
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
    # Threads that spin while they wait slow a run down several times if another program needs a
    # core, as on a laptop. Torch reads this when it is first imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


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
app.command()(bench.bench)
app.command()(demo.demo)
app.add_typer(reproduce.app, name="reproduce")
