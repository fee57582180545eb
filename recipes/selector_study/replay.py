"""Replay selectors on fully scored batches: what share of the utility would each have captured?

    python -m recipes.selector_study.replay LOG.npz... [--ratio 0.25] [--warmup 10]

At every step a selector sees the candidates, picks K = floor(ratio * |C|) of them, gets the utility
of those and of no other, and learns. Its capture is the sum of the utilities it picked over the sum
of all. The oracle picks the K highest utilities.

This is not training. The student of a log was trained on every candidate, whatever a selector picks
here; a student trained on the picks would write other responses. A replay compares selectors on the
same batches; what they do to accuracy only training can tell.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

from bas_opd.budget import query_budget
from bas_opd.files import write_json
from bas_opd.stats.intervals import mean_interval, paired_difference
from bas_opd.text import aligned
from recipes.selector_study.entrants import PAPER, Entrant, Factory, roster, single_columns
from recipes.selector_study.scored import ScoredLog, ScoredStep

STRETCHES = 10
SHOWN = {
    "capture": ".4f",
    "interval": ".4f",
    "of_oracle": ".3f",
    "gain": ".4f",
    "gain_interval": ".4f",
    "token_share": ".3f",
    "milliseconds": ".1f",
}
"""Columns of the table, and how their numbers are written."""
JSON = {"type": Path, "help": "also write the numbers to this file"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one selector did at one step."""

    rows: tuple[int, ...]
    capture: float
    token_share: float
    """Response tokens of the picked rows over those of all candidates."""
    milliseconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One selector over all logs."""

    name: str
    capture: float
    interval: float
    """Half the width of the 95 % interval over logs, or over stretches of a single one."""
    of_oracle: float
    gain: float
    """Difference to the paper's selector; its interval is that of the paired differences."""
    gain_interval: float
    token_share: float
    milliseconds: float
    captures: tuple[float, ...]
    """By log."""


def replay(
    log: ScoredLog, entrant: Entrant, ratio: float | str, *, reveal: bool = False
) -> list[StepResult]:
    """Run an entrant through a log as a training step would.

    With `reveal` it gets all utilities of a step after it has picked: no selector, but a way to see
    whether it lacks labels or columns.
    """
    results = []
    for step in log.steps:
        candidates = step.candidates
        start = time.perf_counter()
        budget = query_budget(ratio, len(candidates))
        selection = entrant.select(candidates, budget, step=candidates.step)
        labelled = candidates.rows if reveal else selection.rows
        utility = dict(zip(candidates.rows, step.utility.tolist(), strict=True))
        labels = {row: utility[row] for row in labelled if math.isfinite(utility[row])}
        entrant.learn(candidates, labels, step=candidates.step)
        seconds = time.perf_counter() - start
        results.append(result_of(step, selection.rows, 1000 * seconds))
    return results


def oracle(log: ScoredLog, ratio: float | str, *, per_token: bool = False) -> list[StepResult]:
    """Pick the highest utilities, which no selector can know; optionally utility per token."""
    results = []
    for step in log.steps:
        worth = step.utility.nan_to_num(0.0)
        if per_token:
            worth = worth / step.candidates.length
        best = worth.topk(query_budget(ratio, len(worth))).indices.tolist()
        results.append(result_of(step, tuple(step.candidates.rows[i] for i in best), 0.0))
    return results


def result_of(step: ScoredStep, rows: tuple[int, ...], milliseconds: float) -> StepResult:
    """Measure a choice of rows."""
    chosen = step.candidates.among(rows)

    def share(of: Tensor) -> float:
        total = float(of.sum())
        return float(of[chosen].sum()) / total if total else 0.0

    return StepResult(
        rows=rows,
        capture=share(step.utility.nan_to_num(0.0)),
        token_share=share(step.candidates.length.double()),
        milliseconds=milliseconds,
    )


def mean_capture(steps: Sequence[StepResult]) -> float:
    """Return the mean capture of some steps."""
    return fmean(step.capture for step in steps)


def compare(
    logs: Sequence[ScoredLog],
    factories: dict[str, Factory],
    *,
    ratio: float | str,
    warmup: int,
    reveal: bool = False,
) -> list[Score]:
    """Score the oracle and every entrant over the logs, without the steps of the warm-up."""
    runs: dict[str, Callable[[ScoredLog], list[StepResult]]] = {
        "oracle": lambda log: oracle(log, ratio),
        "oracle, per token": lambda log: oracle(log, ratio, per_token=True),
    } | {
        name: lambda log, make=make: replay(log, make(), ratio, reveal=reveal)
        for name, make in factories.items()
    }
    results = {name: [run(log)[warmup:] for log in logs] for name, run in runs.items()}
    captures = {name: [mean_capture(run) for run in of] for name, of in results.items()}
    samples = captures
    if len(logs) == 1:
        samples = {name: _stretches(only) for name, (only,) in results.items()}
    paper = samples.get(PAPER)
    scores = []
    for name, own in captures.items():
        steps = [step for run in results[name] for step in run]
        gain = fmean(own) - fmean(captures.get(PAPER, [math.nan]))
        half_width = paired_difference(samples[name], paper).half_width if paper else math.nan
        scores.append(
            Score(
                name=name,
                capture=fmean(own),
                interval=mean_interval(samples[name]).half_width,
                of_oracle=fmean(a / b for a, b in zip(own, captures["oracle"], strict=True)),
                gain=gain,
                gain_interval=half_width,
                token_share=fmean(step.token_share for step in steps),
                milliseconds=median(step.milliseconds for step in steps),
                captures=tuple(own),
            )
        )
    return scores


def _stretches(steps: Sequence[StepResult]) -> list[float]:
    """Return the mean capture of ten stretches: neighbouring steps share a student."""
    bounds = [len(steps) * part // STRETCHES for part in range(STRETCHES + 1)]
    return [mean_capture(steps[start:end]) for start, end in pairwise(bounds) if end > start]


def parse(
    description: str | None,
    arguments: Sequence[str] | None,
    *,
    logs: int | str = "+",
    **flags: dict[str, Any],
) -> tuple[argparse.Namespace, list[ScoredLog]]:
    """Return the options of a command, `flags` beside the common ones, and the logs it names."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("logs", type=Path, nargs=logs)
    parser.add_argument("--ratio", default="0.25", help="query ratio")
    parser.add_argument("--warmup", type=int, default=10, help="first steps, left out of means")
    for name, settings in flags.items():
        parser.add_argument(f"--{name}", **settings)
    options = parser.parse_args(arguments)
    loaded = [ScoredLog.load(path) for path in options.logs]
    shortest = min(len(log.steps) for log in loaded)
    if options.warmup >= shortest:
        parser.error(f"a log has {shortest} steps, so none is left after {options.warmup}")
    return options, loaded


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    options, logs = parse(
        __doc__,
        arguments,
        only={"action": "append", "help": "entrants to run, by the start of a name"},
        columns={"action": "store_true", "help": "rank by single columns instead"},
        reveal={"action": "store_true", "help": "give entrants all utilities"},
        json=JSON,
    )
    ratio, warmup, reveal = options.ratio, options.warmup, options.reveal
    factories = single_columns(logs[0].steps[0].candidates) if options.columns else roster()
    if options.only:
        wanted = tuple(options.only)
        factories = {n: f for n, f in factories.items() if n == PAPER or n.startswith(wanted)}
    scores = compare(logs, factories, ratio=ratio, warmup=warmup, reveal=reveal)
    steps = sum(len(log.steps) - warmup for log in logs)
    known = "all utilities" if reveal else "only picked rows"
    print(f"{len(logs)} logs, {steps} steps after warm-up, ratio {ratio}; {known} are revealed")
    cells = ([s.name, *(f"{getattr(s, n):{form}}" for n, form in SHOWN.items())] for s in scores)
    print(aligned([["", *SHOWN], *cells]))
    if options.json:
        named = {"logs": [log.name for log in logs], "ratio": ratio, "warmup": warmup}
        numbers = {"reveal": reveal, "scores": [asdict(score) for score in scores]}
        write_json(options.json, named | numbers)


if __name__ == "__main__":
    main()
