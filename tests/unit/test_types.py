"""What cannot be built: a selection that breaks its budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bas_opd.errors import BudgetError
from bas_opd.types import Budget, Costs, EngineReport, Example, Rollouts, Selection


def test_a_selection_over_budget_cannot_be_built() -> None:
    assert Selection(rows=(3, 1), budget=2).rows == (3, 1)
    with pytest.raises(BudgetError, match="3 rows exceeds its budget of 2"):
        Selection(rows=(3, 1, 2), budget=2)


def test_a_selection_cannot_name_a_row_twice() -> None:
    with pytest.raises(BudgetError, match="same row twice"):
        Selection(rows=(3, 3), budget=2)


def test_a_selection_cannot_explore_what_it_did_not_select() -> None:
    with pytest.raises(BudgetError, match="did not select"):
        Selection(rows=(3,), explored=frozenset({4}), budget=2)


def test_a_budget_of_a_kind_that_nobody_counts_is_refused() -> None:
    kind: Any = "watts"
    with pytest.raises(BudgetError, match="'watts' is not known"):
        Budget(limit=10, kind=kind)
    assert Budget.of(3) == Budget(limit=3, kind="calls")


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(BudgetError, match="budget is -1 queries; it cannot be negative"):
        Budget.of(-1)


def test_a_budget_in_tokens_knows_what_rows_cost_and_one_in_calls_counts_them() -> None:
    with pytest.raises(BudgetError, match="scored tokens needs what each row costs"):
        Budget(limit=10, kind="scored_tokens")
    with pytest.raises(BudgetError, match="queries counts rows and takes no costs"):
        Budget(limit=10, costs=Costs(rows={0: 1}))


def test_a_prompt_is_paid_once_for_all_its_rows() -> None:
    costs = Costs(rows={0: 3, 1: 4, 2: 5}, prompts={0: 0, 1: 0, 2: 1}, openings={0: 10, 1: 20})
    assert [costs.of(rows) for rows in ((), (0,), (0, 1), (0, 2), (0, 1, 2))] == [0, 13, 17, 38, 42]


def test_a_selection_over_its_budget_in_tokens_cannot_be_built() -> None:
    costs = Costs(rows={0: 3, 1: 4}, prompts={0: 0, 1: 0}, openings={0: 10})
    budget = Budget(limit=16, kind="processed_tokens", costs=costs)
    assert Selection(rows=(1,), budget=budget).spent == 14
    with pytest.raises(BudgetError, match="costs 17 processed tokens and exceeds its budget of 16"):
        Selection(rows=(0, 1), budget=budget)


def test_rollouts_of_several_rounds_name_the_rows_that_were_rescored_in_each() -> None:
    def drawn(rows: tuple[int, ...], gap: float) -> Rollouts:
        return Rollouts(
            step=0,
            examples=tuple(
                Example(id=f"{n}", image=Path("a.png"), question="?", crop=None) for n in range(2)
            ),
            prompts=(),
            per_prompt=2,
            tokens=torch.zeros(4, 3, dtype=torch.long),
            lengths=torch.full((4,), 3),
            logprobs=torch.zeros(4, 3),
            entropies=None,
            engine=EngineReport(version=7, rows=rows, tokens=3 * len(rows), logprob_gap=gap),
        )

    joined = Rollouts.joined([drawn((1, 3), 0.1), drawn((0,), 0.4)])
    found = joined.engine
    assert found is not None
    assert (found.version, found.rows, found.tokens) == (7, (1, 3, 4), 9)
    assert found.logprob_gap == pytest.approx(0.2)
