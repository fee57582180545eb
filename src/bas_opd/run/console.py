"""The console of a run: a live display on a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Any

import rich.console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bas_opd.run.ledger import Ledger
from bas_opd.run.record import QueryRecord, StepRecord
from bas_opd.text import duration, printable

LEDGER = {
    "steps": "steps",
    "ranked_steps": "  rows chosen by score",
    "learned_steps": "  predictor updated",
    "empty_steps": "  without a query",
    "skipped_steps": "  skipped, not finite",
    "candidates": "candidates",
    "candidate_tokens": "candidate tokens",
    "calls": "teacher calls",
    "overrun": "  over budget, worst step",
    "scored_tokens": "teacher scored tokens",
    "processed_tokens": "teacher processed tokens",
    "prefilled_prompts": "teacher prefilled prompts",
    "student_tokens": "student processed tokens",
    "dropped_labels": "labels dropped, not finite",
}
"""The rows of the closing table, in order, and the totals they show."""

SHARES = {"calls": "candidates", "scored_tokens": "candidate_tokens"}
"""Totals that are shown as a share of what full querying costs."""


class _Output(rich.console.Console):
    """An output that survives a broken pipe, as behind `head`: the run continues."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class Console:
    """Shows the progress of a run; use it as a context, so that a failure frees the terminal."""

    def __init__(
        self, file: IO[str] | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out = _Output(file=file, markup=False, highlight=False, emoji=False)
        self._clock = clock
        self._live: Live | None = None
        self._total = 0
        self._done = self._before = 0
        self._ledger = Ledger()
        self._started = self._last = clock()

    def __enter__(self) -> Console:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    @property
    def pipe_closed(self) -> bool:
        """Whether standard output was closed, as behind `head`."""
        return self._out.quiet

    def start(self, total: int, what: str = "steps", *, done: int = 0) -> None:
        """Begin the display of a run of `total` steps, `done` of which are finished already."""
        self._total = total
        self._done = self._before = done
        self._started = self._last = self._clock()
        if self._out.is_terminal and not self._out.is_dumb_terminal and not os.environ.get("CI"):
            self._live = Live(console=self._out, auto_refresh=False, transient=True)
            self._live.start()

    def advance(self, count: int = 1) -> None:
        """Count steps without showing them."""
        self._done += count

    def step(self, step: StepRecord) -> None:
        """Show one step, given its record."""
        now = self._clock()
        self._done += 1
        self._ledger.charge(step)
        pace = (now - self._started) / (self._done - self._before)
        remaining = pace * (self._total - self._done)
        line = step_line(
            step,
            place=f"{self._done}/{self._total}",
            seconds=now - self._last,
            remaining=remaining,
        )
        self._last = now
        if self._live is None:
            self.message(line)
        else:
            ledger = shown_shares(self._ledger.totals())
            # The bar comes last because it does not end its line.
            bar = ProgressBar(total=self._total, completed=self._done)
            display = rich.console.Group(Text(line), Text(ledger, style="dim"), bar)
            with self._ignoring_broken_pipe():
                self._live.update(display, refresh=True)

    def message(self, text: str) -> None:
        """Print a line of text, which may hold anything a dataset or a model wrote."""
        with self._ignoring_broken_pipe():
            self._out.print(Text(printable(text)), soft_wrap=True)

    def finish(self, totals: Mapping[str, Any]) -> None:
        """End the display with the table of the ledger's totals."""
        self._stop()
        table = Table(title="Ledger", title_justify="left", show_header=False)
        table.add_column()
        table.add_column(justify="right")
        for name, label in LEDGER.items():
            table.add_row(label, shown_total(name, totals))
        for phase, seconds in totals["seconds"].items():
            table.add_row(f"time: {printable(phase)}", duration(seconds))
        with self._ignoring_broken_pipe():
            self._out.print(table)

    @contextmanager
    def _ignoring_broken_pipe(self) -> Iterator[None]:
        """Let a run continue when standard output was closed."""
        with contextlib.suppress(OSError, UnicodeEncodeError):
            yield

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def step_line(step: StepRecord, *, place: str, seconds: float, remaining: float) -> str:
    """Return one step on one line; what is not known is left out."""
    parts = [f"step {place}"]
    if step.is_empty:
        parts.append("empty: no row was selected")
    elif step.is_skipped:
        parts.append("skipped: the loss or its gradient is not finite")
    elif step.loss is not None and math.isfinite(step.loss):
        parts.append(f"loss {step.loss:.4f}")
    if isinstance(step, QueryRecord):
        parts += _query_parts(step)
    parts += [duration(seconds), f"eta {duration(remaining)}"]
    return "  ".join(parts)


def _query_parts(step: QueryRecord) -> list[str]:
    queries = f"queries {step.calls}/{step.budget}"
    if step.explored:
        queries += f" ({len(step.explored)} explored)"
    parts = [queries, f"tokens {_share(step.scored_tokens, step.candidate_tokens)}"]
    ranked, explored = step.mean_utility
    if ranked is not None and explored is not None:
        parts.append(f"u {_scientific(ranked)} / {_scientific(explored)}")
    return parts


def shown_shares(totals: Mapping[str, Any]) -> str:
    """Return the totals that are shares of full querying, on one line."""
    return "  ".join(f"{LEDGER[name]} {shown_total(name, totals)}" for name in SHARES)


def shown_total(name: str, totals: Mapping[str, Any]) -> str:
    """Return a total of the ledger, as a share of full querying where it is one."""
    if name in SHARES:
        return _share(totals[name], totals[SHARES[name]])
    return f"{totals[name]:,}"


def _share(part: int, full: int) -> str:
    return f"{part:,} ({100 * part / full:.1f} % of full)" if full else f"{part:,}"


def _scientific(value: float) -> str:
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"
