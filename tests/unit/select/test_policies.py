from __future__ import annotations

import pytest
import torch

from bas_opd.errors import BudgetError, ConfigError
from bas_opd.select import (
    EntropySelector,
    FullSelector,
    LearnedSelector,
    RandomSelector,
    build_selector,
)
from bas_opd.types import FEATURES, Features


def _features(count: int = 20, *, has_entropy: bool = True, **columns: list[float]) -> Features:
    values = torch.rand(
        count, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(count)
    )
    for name, column in columns.items():
        values[:, FEATURES.index(name)] = torch.tensor(column, dtype=torch.float64)
    rows = tuple(range(10, 10 + count))
    return Features(rows=rows, values=values, has_entropy=has_entropy)


def test_the_full_policy_queries_every_candidate() -> None:
    features = _features()
    selection = FullSelector().select(features, 20, step=0)
    assert selection.rows == features.rows
    assert not selection.explored
    assert not selection.scores


def test_the_full_policy_refuses_a_budget_it_cannot_keep() -> None:
    with pytest.raises(BudgetError, match=r"all 20 candidates of step 7, but the budget is 5\."):
        FullSelector().select(_features(), 5, step=7)


def test_random_rows_depend_on_seed_and_step_alone() -> None:
    features = _features(40)
    rows = RandomSelector(seed=1).select(features, 10, step=5).rows
    again = RandomSelector(seed=1)
    again.select(features, 10, step=4)
    assert again.select(features, 10, step=5).rows == rows
    assert again.select(features, 10, step=6).rows != rows
    assert RandomSelector(seed=2).select(features, 10, step=5).rows != rows


def test_random_rows_are_uniform_over_steps() -> None:
    features, selector = _features(10), RandomSelector()
    counts = dict.fromkeys(features.rows, 0)
    for step in range(2000):
        for row in selector.select(features, 3, step=step).rows:
            counts[row] += 1
    # 600 expected of each, with a standard deviation of about 20.
    assert max(abs(count - 600) for count in counts.values()) < 100


def test_entropy_queries_the_most_uncertain_rows() -> None:
    features = _features(4, mean_entropy=[0.1, 0.4, 0.2, 0.3], mean_nll=[9, 1, 8, 1])
    selection = EntropySelector().select(features, 2, step=0)
    assert selection.rows == (11, 13)
    assert selection.scores == {10: 0.1, 11: 0.4, 12: 0.2, 13: 0.3}
    assert not selection.explored


def test_without_entropy_the_mean_nll_decides() -> None:
    features = _features(
        4, has_entropy=False, mean_entropy=[0.0] * 4, mean_nll=[9.0, 1.0, 8.0, 1.0]
    )
    assert EntropySelector().select(features, 2, step=0).rows == (10, 12)


def test_the_lower_row_wins_a_tie() -> None:
    features = _features(6, mean_entropy=[1.0, 2.0, 1.0, 2.0, 1.0, 1.0])
    assert EntropySelector().select(features, 4, step=0).rows == (10, 11, 12, 13)


def test_a_row_without_a_finite_score_comes_last() -> None:
    features = _features(3, mean_entropy=[torch.nan, 0.1, torch.inf])
    selection = EntropySelector().select(features, 1, step=0)
    assert selection.rows == (11,)
    assert selection.scores == {11: 0.1}
    assert EntropySelector().select(features, 3, step=0).rows == (10, 11, 12)


@pytest.mark.parametrize("policy", ["random", "entropy", "learned"])
def test_a_negative_budget_is_refused(policy: str) -> None:
    with pytest.raises(BudgetError, match="cannot be negative"):
        build_selector(policy).select(_features(), -1, step=0)


@pytest.mark.parametrize("policy", ["full", "random", "entropy"])
def test_a_fixed_policy_learns_nothing(policy: str) -> None:
    assert build_selector(policy).learn(_features(), {10: 0.5}, step=0) is False


def test_a_policy_is_built_from_its_name() -> None:
    assert isinstance(build_selector("full", half_life=3), FullSelector)
    random = build_selector("random", seed=4)
    assert isinstance(random, RandomSelector)
    assert random.seed == 4
    assert isinstance(build_selector("entropy"), EntropySelector)
    learned = build_selector("learned", seed=5, half_life=3)
    assert isinstance(learned, LearnedSelector)
    assert (learned.seed, learned.half_life) == (5, 3)
    with pytest.raises(ConfigError, match="no selection policy 'best'; choose full, random"):
        build_selector("best")
