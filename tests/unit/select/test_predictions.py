"""What a selector predicts, in units of utility, for those who look at it from outside."""

from __future__ import annotations

import pytest
import torch

from bas_opd.select import LearnedSelector, RandomSelector, RegressedSelector
from bas_opd.types import FEATURES, Candidates


def features(n: int) -> Candidates:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(n, len(FEATURES), generator=generator, dtype=torch.float64)
    return Candidates(rows=tuple(range(n)), values=values)


def test_a_policy_that_has_learned_nothing_predicts_nothing() -> None:
    for selector in (RandomSelector(), LearnedSelector(), RegressedSelector()):
        assert selector.predicted_utility(features(3)) == [None, None, None]


def test_a_predicted_root_is_squared_in_the_order_of_the_roots() -> None:
    selector = RegressedSelector()
    selector.is_trained = True
    selector.coefficients[1:7] = 1.0
    some = features(20)
    some.values[3, 0] = torch.nan
    roots = selector.predict(some.values).tolist()
    found = selector.predicted_utility(some)
    assert found.pop(3) is None
    roots.pop(3)
    squares = [each for each in found if each is not None]
    assert [abs(each) for each in squares] == pytest.approx([root**2 for root in roots])
    assert min(squares) < 0 < max(squares)
    assert sorted(range(19), key=squares.__getitem__) == sorted(range(19), key=roots.__getitem__)
