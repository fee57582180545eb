"""About what the columns can tell at all: fit every utility of one log, rank another by it.

    python -m recipes.selector_study.ceiling FITTED.npz RANKED.npz

A network that is told all utilities of a whole run beforehand. No selector is; one that comes near
its capture lacks columns, not labels.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn

from bas_opd.budget import query_budget
from bas_opd.select.draws import addressed_generator
from bas_opd.select.policies import finite_scores, ranked
from recipes.selector_study.columns import (
    ALL_COLUMNS,
    Columns,
    joined,
    paper_columns,
    sibling_columns,
    token_columns,
    word_columns,
)
from recipes.selector_study.replay import StepResult, oracle, result_of
from recipes.selector_study.scored import Candidates, ScoredLog

GROUPS: dict[str, Columns] = {
    "six features": paper_columns,
    "and token columns": joined(paper_columns, token_columns),
    "and sibling columns": joined(paper_columns, sibling_columns),
    "all columns and kind": ALL_COLUMNS,
    "all columns, kind and words": joined(ALL_COLUMNS, word_columns),
}


def ceiling(
    fitted: ScoredLog, against: ScoredLog, columns: Columns, ratio: str
) -> list[StepResult]:
    """Return what a regression on one whole log picks in another."""
    x = torch.cat([_matrix(step.candidates, columns) for step in fitted.steps])
    utility = torch.cat([step.utility for step in fitted.steps]).nan_to_num(0.0)
    mean, deviation = x.mean(0), x.std(0) + 1e-6
    network = _fit(((x - mean) / deviation).clamp(-4, 4), utility / utility.std())
    results = []
    for step in against.steps:
        with torch.no_grad():
            scaled = (_matrix(step.candidates, columns) - mean) / deviation
            scores = network(scaled.clamp(-4, 4))[:, 0]
        rows = step.candidates.features.rows
        order = ranked(rows, finite_scores(rows, scores.tolist()))
        results.append(result_of(step, tuple(order[: query_budget(ratio, len(rows))]), 0.0))
    return results


def _matrix(candidates: Candidates, columns: Columns) -> Tensor:
    return torch.stack(list(columns(candidates).values()), 1)


def _fit(x: Tensor, y: Tensor, *, passes: int = 12, batch: int = 256) -> nn.Module:
    draws = addressed_generator("ceiling", 0)
    layers = [
        nn.Linear(x.shape[1], 64),
        nn.SiLU(),
        nn.Linear(64, 64),
        nn.SiLU(),
        nn.Linear(64, 1),
    ]
    network = nn.Sequential(*layers).double()
    for parameter in network.parameters():
        bound = 1 / parameter.shape[-1] ** 0.5
        nn.init.uniform_(parameter, -bound, bound, generator=draws)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=1e-2)
    batches = [
        part for _ in range(passes) for part in torch.randperm(len(y), generator=draws).split(batch)
    ]
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(batches))
    for part in batches:
        loss = (network(x[part])[:, 0] - y[part]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return network


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the capture of every group of columns."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("fitted", type=Path)
    parser.add_argument("ranked", type=Path)
    parser.add_argument("--ratio", default="0.25", help="query ratio")
    parser.add_argument("--warmup", type=int, default=10, help="first steps that are not counted")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    fitted, against = ScoredLog.load(options.fitted), ScoredLog.load(options.ranked)

    def capture(results: Sequence[StepResult]) -> float:
        return fmean(result.capture for result in results[options.warmup :])

    best = capture(oracle(against, options.ratio))
    print(f"oracle {best:.4f}")
    for name, columns in GROUPS.items():
        own = capture(ceiling(fitted, against, columns, options.ratio))
        print(f"{name:<30}{own:8.4f}{own / best:8.3f} of the oracle", flush=True)


if __name__ == "__main__":
    main()
