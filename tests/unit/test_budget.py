from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from bas_opd.budget import exploration_quota, query_budget, step_budget
from bas_opd.errors import BudgetError, ConfigError
from bas_opd.types import Budget, Costs


@pytest.mark.parametrize(
    "ratio", [0.29, "0.29", Decimal("0.29"), np.float64(0.29), np.float32(0.29)]
)
def test_a_ratio_means_the_decimal_it_shows(ratio: float | str | Decimal) -> None:
    assert query_budget(ratio, 100) == 29


def test_the_whole_batch_may_be_queried() -> None:
    assert query_budget(1, 224) == query_budget(1.0, 224) == query_budget("1", 224) == 224


def test_more_digits_than_a_decimal_context_holds_are_not_rounded_away() -> None:
    assert query_budget("0." + "9" * 60, 100) == 99
    assert exploration_quota("0.5" + "0" * 60 + "1", 10) == 6
    assert query_budget(1, 10**40 + 1) == 10**40 + 1
    assert query_budget("1e-2000000", 10**40) == 0
    assert exploration_quota("1e-2000000", 10**40) == 1


def test_a_numpy_count_is_a_count() -> None:
    budget = query_budget(0.25, int(np.int64(224)))
    assert query_budget(0.25, np.int64(224)) == budget  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("ratio", [0, 0.0, -0.25, 1.0000001, 2, "-1"])
def test_a_query_ratio_outside_its_range_is_refused(ratio: float | str) -> None:
    with pytest.raises(ConfigError, match="must lie above 0 and at most at 1"):
        query_budget(ratio, 100)


@pytest.mark.parametrize("epsilon", [-0.1, 1.1, "2"])
def test_an_exploration_ratio_outside_its_range_is_refused(epsilon: float | str) -> None:
    with pytest.raises(ConfigError, match="must lie between 0 and 1"):
        exploration_quota(epsilon, 100)


@pytest.mark.parametrize(
    "ratio", ["25%", "a quarter", "", "1/4", Fraction(1, 4), "nan", "inf", "sNaN", np.inf, np.nan]
)
def test_what_is_no_decimal_number_is_refused(ratio: float | str) -> None:
    with pytest.raises(ConfigError, match=r"is no decimal number; write it like 0\.25"):
        query_budget(ratio, 100)


@pytest.mark.parametrize("ratio", [True, None, [0.25]])
def test_a_ratio_of_another_type_is_refused(ratio: float) -> None:
    with pytest.raises(TypeError, match="give a float, a string or a Decimal"):
        query_budget(ratio, 100)


@pytest.mark.parametrize("candidates", [True, 100.0, "100", None])
def test_a_count_that_is_no_int_is_refused(candidates: int) -> None:
    with pytest.raises(TypeError):
        query_budget(0.25, candidates)
    with pytest.raises(TypeError):
        exploration_quota(0.25, candidates)


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(BudgetError, match="candidates is -1"):
        query_budget(0.25, -1)
    with pytest.raises(BudgetError, match="budget is -1"):
        exploration_quota(0.25, -1)


def test_the_budget_of_a_step_is_a_share_of_what_all_its_rows_cost() -> None:
    assert step_budget("0.29", range(100)) == Budget(limit=29)
    costs = Costs(rows={0: 30, 1: 31}, prompts={0: 0, 1: 1}, openings={0: 19, 1: 20})
    budget = step_budget("0.29", (0, 1), "processed_tokens", costs)
    assert (budget.limit, budget.kind, budget.costs) == (29, "processed_tokens", costs)


def test_a_budget_in_tokens_needs_a_teacher_that_can_say_what_rows_cost() -> None:
    with pytest.raises(ConfigError, match="budget is in scored_tokens, but the teacher cannot say"):
        step_budget("0.25", (0, 1), "scored_tokens", None)
