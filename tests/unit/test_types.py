"""What cannot be built: a selection that breaks its budget."""

from __future__ import annotations

from typing import Any

import pytest

from bas_opd.errors import BudgetError
from bas_opd.types import Budget, Selection


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
    kind: Any = "scored_tokens"
    with pytest.raises(BudgetError, match="'scored_tokens' is not known"):
        Budget(limit=10, kind=kind)
    assert Budget.of(3) == Budget(limit=3, kind="calls")
