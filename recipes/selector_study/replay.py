"""Replay selectors on fully scored batches: which share of the utility would each have caught?

    python -m recipes.selector_study.replay LOG.npz... [--ratio 0.25] [--warmup 10]

At every step a selector sees the candidates, picks K = floor(ratio * |C|) of them, is told the
utility of those and of no other, and learns. Its capture is the sum of the utilities it picked over
the sum of all. Beside it stand random picking and the oracle, which picks the K highest utilities.

This is not training. The student of a log was trained on every candidate, and its path stays what
it was whatever a selector picks here; a student trained on the picks would write other responses.
A replay compares selectors on the same batches; what they do to accuracy only training can tell.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from bas_opd.budget import query_budget
from bas_opd.stats.intervals import mean_interval, paired_difference
from recipes.selector_study.columns import ALL_COLUMNS
from recipes.selector_study.entrants import Entrant
from recipes.selector_study.roster import PAPER, Factory, roster, single_columns
from recipes.selector_study.scored import ScoredLog, ScoredStep

STRETCHES = 10


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
    """Drive an entrant through a log as a training step would.

    With `reveal` it is told all utilities of a step after it has picked: no selector, but a way to
    see whether it lacks labels or columns.
    """
    results = []
    for step in log.steps:
        candidates = step.candidates
        start = time.perf_counter()
        selection = entrant.select(candidates, query_budget(ratio, len(candidates)))
        told = candidates.features.rows if reveal else selection.rows
        utility = dict(zip(candidates.features.rows, step.utility.tolist(), strict=True))
        paid = {row: utility[row] for row in told if math.isfinite(utility[row])}
        entrant.learn(candidates, paid)
        seconds = time.perf_counter() - start
        results.append(result_of(step, selection.rows, 1000 * seconds))
    return results


def oracle(log: ScoredLog, ratio: float | str, *, per_token: bool = False) -> list[StepResult]:
    """Pick the highest utilities, which no selector can know; optionally utility per token."""
    results = []
    for step in log.steps:
        worth = step.utility.nan_to_num(0.0)
        if per_token:
            worth = worth / step.candidates.lengths
        best = worth.topk(query_budget(ratio, len(worth))).indices.tolist()
        results.append(result_of(step, tuple(step.candidates.features.rows[i] for i in best), 0.0))
    return results


def compare(
    logs: Sequence[ScoredLog],
    factories: dict[str, Factory],
    *,
    ratio: float | str,
    warmup: int,
    reveal: bool = False,
) -> list[Score]:
    """Score the oracle and every entrant over the logs, the steps of the warm-up left out."""
    results = {"oracle": [oracle(log, ratio) for log in logs]}
    results["oracle, per token"] = [oracle(log, ratio, per_token=True) for log in logs]
    for name, make in factories.items():
        results[name] = [replay(log, make(), ratio, reveal=reveal) for log in logs]
    captures = {name: _captures(runs, warmup) for name, runs in results.items()}
    samples = captures
    if len(logs) == 1:
        samples = {name: _stretches(runs[0][warmup:]) for name, runs in results.items()}
    scores = []
    for name, own in captures.items():
        late = [step for run in results[name] for step in run[warmup:]]
        shares = [a / b for a, b in zip(own, captures["oracle"], strict=True)]
        gain_interval = math.nan
        if PAPER in samples:
            gain_interval = paired_difference(samples[name], samples[PAPER]).half_width
        scores.append(
            Score(
                name=name,
                capture=statistics.fmean(own),
                interval=mean_interval(samples[name]).half_width,
                of_oracle=statistics.fmean(shares),
                gain=statistics.fmean(own) - statistics.fmean(captures.get(PAPER, [math.nan])),
                gain_interval=gain_interval,
                token_share=statistics.fmean(step.token_share for step in late),
                milliseconds=statistics.median(step.milliseconds for step in late),
                captures=tuple(own),
            )
        )
    return scores


def _captures(runs: Sequence[list[StepResult]], warmup: int) -> list[float]:
    return [statistics.fmean(step.capture for step in run[warmup:]) for run in runs]


def _stretches(steps: Sequence[StepResult]) -> list[float]:
    """Mean capture of ten stretches: steps that follow each other share a student."""
    bounds = [len(steps) * part // STRETCHES for part in range(STRETCHES + 1)]
    parts = [steps[start:end] for start, end in pairwise(bounds) if end > start]
    return [statistics.fmean(step.capture for step in part) for part in parts]


def result_of(step: ScoredStep, rows: tuple[int, ...], milliseconds: float) -> StepResult:
    """Measure a choice of rows."""
    chosen = torch.isin(torch.tensor(step.candidates.features.rows), torch.tensor(rows))

    def share(of: Tensor) -> float:
        total = float(of.sum())
        return float(of[chosen].sum()) / total if total else 0.0

    return StepResult(
        rows=rows,
        capture=share(step.utility.nan_to_num(0.0)),
        token_share=share(step.candidates.lengths.double()),
        milliseconds=milliseconds,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("logs", type=Path, nargs="+")
    parser.add_argument("--ratio", default="0.25", help="query ratio")
    parser.add_argument("--warmup", type=int, default=10, help="first steps that are not counted")
    parser.add_argument("--only", action="append", help="entrants to run, by the start of a name")
    parser.add_argument("--columns", action="store_true", help="rank by single columns instead")
    parser.add_argument("--reveal", action="store_true", help="tell entrants all utilities")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    logs = [ScoredLog.load(path) for path in options.logs]
    shortest = min(len(log.steps) for log in logs)
    if options.warmup >= shortest:
        parser.error(f"a log has {shortest} steps, so none is left after {options.warmup}")
    factories = roster()
    if options.columns:
        names = list(ALL_COLUMNS(logs[0].steps[0].candidates))
        factories = single_columns(ALL_COLUMNS, names)
    if options.only:
        factories = {
            name: make
            for name, make in factories.items()
            if name == PAPER or name.startswith(tuple(options.only))
        }
    scores = compare(
        logs, factories, ratio=options.ratio, warmup=options.warmup, reveal=options.reveal
    )
    _show(scores, logs, options)
    if options.json:
        report = {
            "logs": [log.name for log in logs],
            "ratio": options.ratio,
            "warmup": options.warmup,
            "reveal": options.reveal,
            "scores": [asdict(score) for score in scores],
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _show(scores: Sequence[Score], logs: Sequence[ScoredLog], options: argparse.Namespace) -> None:
    steps = sum(len(log.steps) - options.warmup for log in logs)
    told = "all utilities are revealed" if options.reveal else "only picked rows are revealed"
    print(f"{len(logs)} logs, {steps} steps after warm-up, ratio {options.ratio}; {told}")
    titles = f"{'capture':>9}{'+-':>7}{'of oracle':>11}{'gain':>8}{'+-':>7}{'tokens':>8}{'ms':>7}"
    print(" " * 36 + titles)
    for score in scores:
        print(
            f"{score.name:<36}{score.capture:9.4f}{score.interval:7.4f}{score.of_oracle:11.3f}"
            f"{score.gain:8.4f}{score.gain_interval:7.4f}{score.token_share:8.3f}"
            f"{score.milliseconds:7.1f}"
        )


if __name__ == "__main__":
    main()
