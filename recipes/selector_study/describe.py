"""Say what an entrant picks: how many prompts, which kinds, how long, how much alike.

    python -m recipes.selector_study.describe LOG.npz... [--only NAME ...] [--json FILE]

The share of utility an entrant captures says nothing of how it is spread. Eight rollouts of one
picture may all be worth much and teach one and the same thing.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from recipes.selector_study.replay import StepResult, oracle, replay
from recipes.selector_study.roster import CHOSEN, PAPER, roster
from recipes.selector_study.scored import ScoredLog, ScoredStep

SHORT = 3
"""Response tokens up to which a response is a bare answer."""


def describe(log: ScoredLog, results: Sequence[StepResult], warmup: int) -> dict[str, Any]:
    """Average over the steps after the warm-up."""
    late = list(zip(log.steps, results, strict=True))[warmup:]
    steps = [_describe_step(step, result.rows) for step, result in late]
    kinds = Counter(kind for step, result in late for kind in _kinds(step, result.rows))
    means = {name: fmean(step[name] for step in steps) for name in steps[0]}
    shares = {kind: kinds[kind] / kinds.total() for kind in late[0][0].candidates.kind_names}
    return {"capture": fmean(result.capture for _, result in late), **means, "kinds": shares}


def utility_by_kind(log: ScoredLog, warmup: int) -> dict[str, float]:
    """Share of all utility that lies in each kind."""
    totals = Counter[str]()
    for step in log.steps[warmup:]:
        for kind, worth in zip(step.candidates.kinds.tolist(), step.utility.tolist(), strict=True):
            totals[step.candidates.kind_names[kind]] += worth
    return {kind: worth / totals.total() for kind, worth in sorted(totals.items())}


def between_prompts(log: ScoredLog, warmup: int) -> float:
    """Share of the variance of utility in a step that lies between its prompts."""
    shares = []
    for step in log.steps[warmup:]:
        prompts, places = step.candidates.prompts.unique(return_inverse=True)
        own = torch.zeros(len(prompts), dtype=torch.float64)
        means = own.index_add(0, places, step.utility) / torch.bincount(places)
        shares.append(float(means[places].var() / step.utility.var()))
    return fmean(shares)


def _describe_step(step: ScoredStep, rows: tuple[int, ...]) -> dict[str, float]:
    candidates = step.candidates
    chosen = torch.isin(torch.tensor(candidates.features.rows), torch.tensor(rows))
    prompts, lengths = candidates.prompts[chosen], candidates.lengths[chosen]
    counts = prompts.unique(return_counts=True)[1].double()
    texts = torch.cat([prompts[:, None], candidates.tokens[chosen]], 1).unique(dim=0)
    return {
        "prompts": len(counts) / len(candidates.prompts.unique()),
        "effective_prompts": float(counts.sum().square() / counts.square().sum()),
        "distinct_responses": len(texts) / len(rows),
        "tokens": float(lengths.sum()),
        "short": float((lengths <= SHORT).double().mean()),
    }


def _kinds(step: ScoredStep, rows: tuple[int, ...]) -> list[str]:
    candidates = step.candidates
    kind_of = dict(zip(candidates.features.rows, candidates.kinds.tolist(), strict=True))
    return [candidates.kind_names[kind_of[row]] for row in rows]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line for each entrant, the mean over logs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("logs", type=Path, nargs="+")
    parser.add_argument("--ratio", default="0.25", help="query ratio")
    parser.add_argument("--warmup", type=int, default=10, help="first steps that are not counted")
    parser.add_argument("--only", action="append", help="entrants, by their whole names")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    logs = [ScoredLog.load(path) for path in options.logs]
    report: dict[str, Any] = {
        "logs": [log.name for log in logs],
        "ratio": options.ratio,
        "warmup": options.warmup,
        "utility_by_kind": _mean([utility_by_kind(log, options.warmup) for log in logs]),
        "variance_between_prompts": fmean(between_prompts(log, options.warmup) for log in logs),
        "picked": {},
    }
    factories = roster()
    for name in ("oracle", *(options.only or ("random", "entropy", PAPER, CHOSEN))):
        runs = [
            oracle(log, options.ratio)
            if name == "oracle"
            else replay(log, factories[name](), options.ratio)
            for log in logs
        ]
        each = [describe(log, run, options.warmup) for log, run in zip(logs, runs, strict=True)]
        report["picked"][name] = _mean(each)
    print(json.dumps(report, indent=2))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _mean(tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: _mean([table[name] for table in tables])
        if isinstance(value, dict)
        else round(fmean(table[name] for table in tables), 4)
        for name, value in tables[0].items()
    }


if __name__ == "__main__":
    main()
