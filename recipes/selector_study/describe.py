"""Describe what an entrant picks: how many prompts, which kinds, how long, how similar.

    python -m recipes.selector_study.describe LOG.npz... [--only NAME ...] [--json FILE]

The share of utility an entrant captures says nothing about how it is spread. Eight rollouts of one
picture may all have a high utility and teach the same thing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch

from bas_opd.files import write_json
from recipes.selector_study.entrants import CHOSEN, PAPER, roster
from recipes.selector_study.replay import JSON, StepResult, mean_capture, oracle, parse, replay
from recipes.selector_study.scored import ScoredLog

SHORT = 3
"""Response tokens up to which a response is a bare answer."""


def describe(log: ScoredLog, results: Sequence[StepResult], warmup: int) -> dict[str, Any]:
    """Average over the steps after the warm-up."""
    steps, kinds = list[dict[str, float]](), Counter[int]()
    late = results[warmup:]
    for step, result in zip(log.steps[warmup:], late, strict=True):
        candidates = step.candidates
        chosen = candidates.among(result.rows)
        prompts, lengths = candidates.prompt[chosen], candidates.length[chosen]
        counts = prompts.unique(return_counts=True)[1].double()
        texts = torch.cat([prompts[:, None], candidates.responses[chosen]], 1).unique(dim=0)
        kinds.update(candidates.kind[chosen].tolist())
        steps.append(
            {
                "prompts": len(counts) / len(candidates.prompt.unique()),
                "effective_prompts": float(counts.sum().square() / counts.square().sum()),
                "distinct_responses": len(texts) / len(result.rows),
                "tokens": float(lengths.sum()),
                "short": float((lengths <= SHORT).double().mean()),
            }
        )
    means = {name: fmean(step[name] for step in steps) for name in steps[0]}
    names = log.steps[0].candidates.kind_names
    shares = {name: kinds[kind] / kinds.total() for kind, name in enumerate(names)}
    return {"capture": mean_capture(late), **means, "kinds": shares}


def utility_by_kind(log: ScoredLog, warmup: int) -> dict[str, float]:
    """Return the share of all utility that each kind has."""
    totals = Counter[str]()
    for step in log.steps[warmup:]:
        for kind, worth in zip(step.candidates.kind.tolist(), step.utility.tolist(), strict=True):
            totals[step.candidates.kind_names[kind]] += worth
    return {kind: worth / totals.total() for kind, worth in sorted(totals.items())}


def between_prompts(log: ScoredLog, warmup: int) -> float:
    """Return the share of the variance of utility in a step that is between its prompts."""
    shares = []
    for step in log.steps[warmup:]:
        prompts, places = step.candidates.prompt.unique(return_inverse=True)
        own = torch.zeros(len(prompts), dtype=torch.float64)
        means = own.index_add(0, places, step.utility) / torch.bincount(places)
        shares.append(float(means[places].var() / step.utility.var()))
    return fmean(shares)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one entry per entrant, the mean over logs."""
    only = {"action": "append", "help": "entrants, by their whole names"}
    options, logs = parse(__doc__, arguments, only=only, json=JSON)
    factories, ratio, warmup = roster(), options.ratio, options.warmup

    def picked(name: str, log: ScoredLog) -> dict[str, Any]:
        is_oracle = name == "oracle"
        steps = oracle(log, ratio) if is_oracle else replay(log, factories[name](), ratio)
        return describe(log, steps, warmup)

    names = ("oracle", *(options.only or ("random", "entropy", PAPER, CHOSEN)))
    report = {
        "logs": [log.name for log in logs],
        "ratio": ratio,
        "warmup": warmup,
        "utility_by_kind": _mean([utility_by_kind(log, warmup) for log in logs]),
        "variance_between_prompts": fmean(between_prompts(log, warmup) for log in logs),
        "picked": {name: _mean([picked(name, log) for log in logs]) for name in names},
    }
    print(json.dumps(report, indent=2))
    if options.json:
        write_json(options.json, report)


def _mean(tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: _mean([table[name] for table in tables])
        if isinstance(value, dict)
        else round(fmean(table[name] for table in tables), 4)
        for name, value in tables[0].items()
    }


if __name__ == "__main__":
    main()
