"""What a person sees of a run: a live display on a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import fmean
from types import TracebackType
from typing import IO, Any

import rich.console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

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
    """An output whose reader may leave, as `head` does: the run goes on, unseen."""

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
        self._counts = dict.fromkeys((*SHARES, *SHARES.values()), 0)
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
    def is_deaf(self) -> bool:
        """Whether nobody can read it any more, as behind `head`."""
        return self._out.quiet

    def start(self, total_steps: int, *, done: int = 0) -> None:
        """Begin the display of a run of so many steps, some of which may be done already."""
        self._total = total_steps
        self._done = self._before = done
        self._started = self._last = self._clock()
        if self._out.is_terminal and not self._out.is_dumb_terminal and not os.environ.get("CI"):
            self._live = Live(console=self._out, auto_refresh=False, transient=True)
            self._live.start()

    def step(self, event: Mapping[str, Any]) -> None:
        """Show one step, given its record."""
        now = self._clock()
        self._done += 1
        for name in self._counts:
            value = event[name]
            self._counts[name] += len(value) if isinstance(value, list) else value
        pace = (now - self._started) / (self._done - self._before)
        remaining = pace * (self._total - self._done)
        line = step_line(
            event,
            place=f"{self._done}/{self._total}",
            seconds=now - self._last,
            remaining=remaining,
        )
        self._last = now
        if self._live is None:
            self.message(line)
        else:
            ledger = "  ".join(
                f"{LEDGER[name]} {shown_total(name, self._counts)}" for name in SHARES
            )
            # The bar comes last because it does not end its line.
            bar = ProgressBar(total=self._total, completed=self._done)
            display = rich.console.Group(Text(line), Text(ledger, style="dim"), bar)
            with self._unless_deaf():
                self._live.update(display, refresh=True)

    def message(self, text: str) -> None:
        """Print a line of text, which may hold anything a dataset or a model wrote."""
        with self._unless_deaf():
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
        with self._unless_deaf():
            self._out.print(table)

    @contextmanager
    def _unless_deaf(self) -> Iterator[None]:
        """Let a run go on when nobody can read it any more."""
        with contextlib.suppress(OSError, UnicodeEncodeError):
            yield

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def step_line(event: Mapping[str, Any], *, place: str, seconds: float, remaining: float) -> str:
    """One step on one line; what is not known is left out."""
    queries = f"queries {event['calls']}/{event['budget']}"
    if event["explored"]:
        queries += f" ({len(event['explored'])} explored)"
    parts = [f"step {place}"]
    if not event["selected"]:
        parts.append("empty: no row was selected")
    elif not event["is_valid"]:
        parts.append("skipped: the loss or its gradient is not finite")
    elif event["loss"] is not None and math.isfinite(event["loss"]):
        parts.append(f"loss {event['loss']:.4f}")
    parts += [queries, f"tokens {_share(event['scored_tokens'], event['candidate_tokens'])}"]
    ranked, explored = observed_utility(event)
    if ranked is not None and explored is not None:
        parts.append(f"u {_scientific(ranked)} / {_scientific(explored)}")
    parts += [duration(seconds), f"eta {duration(remaining)}"]
    return "  ".join(parts)


def observed_utility(event: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Mean utility of the rows ranked highest and of the explored ones, where a ranking was."""
    if all(score is None for score in event["scores"]):
        return None, None
    explored = set(event["explored"])
    groups: dict[bool, list[float]] = {False: [], True: []}
    for row, utility in zip(event["selected"], event["utility"], strict=True):
        if utility is not None:
            groups[row in explored].append(utility)
    ranked_mean, explored_mean = (fmean(group) if group else None for group in groups.values())
    return ranked_mean, explored_mean


def shown_total(name: str, totals: Mapping[str, Any]) -> str:
    """A total of the ledger, as a share of full querying where it is one."""
    if name in SHARES:
        return _share(totals[name], totals[SHARES[name]])
    return f"{totals[name]:,}"


def _share(part: int, full: int) -> str:
    return f"{part:,} ({100 * part / full:.1f} % of full)" if full else f"{part:,}"


def _scientific(value: float) -> str:
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"
