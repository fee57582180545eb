"""The arms of a comparison as its figures need them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from bas_opd.report.figures.arms import Arm, over_seeds
from bas_opd.reproduce.arms import ARMS, BASE, FULL, arm_config
from bas_opd.reproduce.results import RunResult


def arms_of(results: Sequence[RunResult]) -> list[Arm]:
    """Return every arm that has results, in the order of the table."""
    full = [r.cost.scored_tokens for r in results if r.arm == FULL and r.cost]
    by_arm = {arm: [r for r in results if r.arm == arm] for arm in ARMS}
    return [_arm(arm, mine, fmean(full) if full else None) for arm, mine in by_arm.items() if mine]


def source_of(results: Sequence[RunResult]) -> str:
    """Say what the arms were measured on."""
    seeds = max((result.seed or 0) for result in results) + 1
    task, n = results[0].task, results[0].n
    return f"{task}, small model: {n:,} questions, {seeds} seeds; bars: 95 % Student-t."


def _arm(name: str, results: Sequence[RunResult], full_tokens: float | None) -> Arm:
    tokens = [result.cost.scored_tokens for result in results if result.cost]
    return Arm(
        name=name,
        budget=None if name == BASE else _budget(name),
        parts={
            kind: over_seeds([result.kinds[kind].accuracy for result in results])
            for kind in results[0].kinds
        },
        mean=over_seeds([result.mean for result in results]),
        token_share=fmean(tokens) / full_tokens if tokens and full_tokens else None,
    )


def _budget(arm: str) -> float:
    return float(arm_config(arm, 0, ["model.path=x", "data.path=x"]).select.query_ratio)
