from __future__ import annotations

import pytest
import torch

from bas_opd.errors import ConfigError
from bas_opd.select import selector_loss


def _loss(
    predicted: torch.Tensor,
    utility: torch.Tensor,
    age: torch.Tensor,
    half_life: float = 10,
    rank_weight: float = 0.2,
) -> torch.Tensor:
    return selector_loss(predicted, utility, age, half_life=half_life, rank_weight=rank_weight)


def test_gradients_reach_the_prediction_only() -> None:
    generator = torch.Generator().manual_seed(0)
    predicted, utility, age = (torch.rand(5, generator=generator) for _ in range(3))
    for tensor in (predicted, utility, age):
        tensor.requires_grad_()
    _loss(predicted, utility, age).backward()
    assert predicted.grad is not None
    assert predicted.grad.ne(0).all()
    assert utility.grad is None
    assert age.grad is None


def test_without_a_pair_to_rank_only_the_regression_is_left() -> None:
    predicted = torch.tensor([0.1, 0.9], dtype=torch.float64, requires_grad=True)
    utility = torch.tensor([0.5, 0.5 + 5e-7], dtype=torch.float64)
    loss = _loss(predicted, utility, torch.zeros(2), rank_weight=100)
    assert loss.item() == _loss(predicted, utility, torch.zeros(2), rank_weight=0).item()
    loss.backward()
    assert predicted.grad is not None
    assert predicted.grad.isfinite().all()
    single = _loss(predicted[:1], utility[:1], torch.zeros(1), rank_weight=100)
    torch.testing.assert_close(single.item(), 0.4**2 / 2)


def test_a_batch_of_old_labels_teaches_like_a_batch_of_new_ones() -> None:
    predicted, utility = torch.tensor([0.1, 0.9, 0.3]), torch.tensor([0.2, 0.1, 0.4])
    age = torch.tensor([0, 5, 12])
    torch.testing.assert_close(
        _loss(predicted, utility, age + 100_000), _loss(predicted, utility, age)
    )


def test_a_pair_of_very_different_ages_stays_finite() -> None:
    predicted = torch.tensor([0.1, 0.9], requires_grad=True)
    loss = _loss(predicted, torch.tensor([0.2, 0.1]), torch.tensor([0, 1_000_000]))
    loss.backward()
    assert loss.isfinite()
    assert predicted.grad is not None
    assert predicted.grad.isfinite().all()


def test_extreme_predictions_give_no_nan() -> None:
    predicted = torch.tensor([1e4, -1e4, 0.0], requires_grad=True)
    loss = _loss(predicted, torch.tensor([0.0, 0.1, 0.2]), torch.zeros(3))
    loss.backward()
    assert loss.isfinite()
    assert predicted.grad is not None
    assert predicted.grad.isfinite().all()


def test_no_labels_give_a_zero_with_a_graph() -> None:
    predicted = torch.empty(0, requires_grad=True)
    loss = _loss(predicted, torch.empty(0), torch.empty(0))
    loss.backward()
    assert loss.item() == 0


def test_a_prediction_with_a_trailing_axis_is_refused_rather_than_broadcast() -> None:
    with pytest.raises(ValueError, match=r"\[3, 1\], \[3\] and \[3\]"):
        _loss(torch.zeros(3, 1), torch.zeros(3), torch.zeros(3))


@pytest.mark.parametrize("half_life", [0, -1, float("nan")])
def test_a_half_life_must_be_positive(half_life: float) -> None:
    with pytest.raises(ConfigError, match="must be above 0"):
        _loss(torch.zeros(3), torch.zeros(3), torch.zeros(3), half_life=half_life)
