"""Estimate what the columns can tell at all: fit every utility of one log, rank another by it.

    python -m recipes.selector_study.ceiling FITTED.npz RANKED.npz

The network gets all utilities of a whole run beforehand. No selector does; one that comes near its
capture lacks columns, not labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bas_opd.select.draws import addressed_generator
from recipes.selector_study.columns import (
    ALL_COLUMNS,
    Columns,
    joined,
    paper_columns,
    sibling_columns,
    token_columns,
    word_columns,
)
from recipes.selector_study.entrants import Ranked
from recipes.selector_study.replay import StepResult, mean_capture, oracle, parse, replay
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

    def matrix(candidates: Candidates) -> Tensor:
        return torch.stack(list(columns(candidates).values()), 1)

    x = torch.cat([matrix(step.candidates) for step in fitted.steps])
    utility = torch.cat([step.utility for step in fitted.steps]).nan_to_num(0.0)
    mean, deviation = x.mean(0), x.std(0) + 1e-6
    network = _fit(((x - mean) / deviation).clamp(-4, 4), utility / utility.std())

    @torch.no_grad()
    def score(candidates: Candidates) -> Tensor:
        return network(((matrix(candidates) - mean) / deviation).clamp(-4, 4))[:, 0]

    return replay(against, Ranked(score), ratio)


def _fit(x: Tensor, y: Tensor, *, passes: int = 12, batch: int = 256) -> nn.Module:
    draws = addressed_generator("ceiling", 0)
    network = nn.Sequential(
        nn.Linear(x.shape[1], 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)
    ).double()
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
    options, (fitted, against) = parse(__doc__, arguments, logs=2)
    ratio, warmup = options.ratio, options.warmup
    best = mean_capture(oracle(against, ratio)[warmup:])
    print(f"oracle {best:.4f}")
    for name, columns in GROUPS.items():
        own = mean_capture(ceiling(fitted, against, columns, ratio)[warmup:])
        print(f"{name:<30}{own:8.4f}{own / best:8.3f} of the oracle", flush=True)


if __name__ == "__main__":
    main()
