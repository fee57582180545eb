"""Eqs. 10 and 12 against an independent reference, written as loops in plain floats."""

from __future__ import annotations

import math
import random

import pytest
import torch

from bas_opd.select import selector_loss


def _reference(
    predicted: list[float],
    utility: list[float],
    age: list[float],
    half_life: float,
    rank_weight: float,
    *,
    ordered: bool,
) -> float:
    weights = [2 ** (-a / half_life) for a in age]
    regression = 0.0
    for v, u, w in zip(predicted, utility, weights, strict=True):
        error = abs(v - u)
        regression += w * (error**2 / 2 if error <= 1 else error - 0.5)
    regression /= sum(weights)

    ranking, total = 0.0, 0.0
    for i in range(len(utility)):
        for j in range(0 if ordered else i + 1, len(utility)):
            gap = utility[i] - utility[j]
            if abs(gap) > 1e-6:
                weight = math.sqrt(weights[i] * weights[j])
                margin = math.copysign(1, gap) * (predicted[i] - predicted[j])
                ranking += weight * math.log1p(math.exp(-margin))
                total += weight
    return regression + rank_weight * (ranking / total if total else 0.0)


def _case(seed: int) -> tuple[list[float], list[float], list[float]]:
    source = random.Random(seed)
    size = source.randrange(1, 25)
    predicted = [source.uniform(-3, 3) for _ in range(size)]
    # Few distinct values, some apart by less than the smallest gap that counts as an order.
    utility = [source.randrange(4) / 7 + source.choice([0, 4e-7]) for _ in range(size)]
    age = [float(source.randrange(40)) for _ in range(size)]
    return predicted, utility, age


@pytest.mark.parametrize("ordered", [False, True], ids=["each-pair-once", "each-pair-twice"])
@pytest.mark.parametrize("seed", range(20))
def test_the_loss_equals_the_equations(seed: int, ordered: bool) -> None:
    case = _case(seed)
    half_life, rank_weight = 10, 0.2
    loss = selector_loss(
        *(torch.tensor(values, dtype=torch.float64) for values in case),
        half_life=half_life,
        rank_weight=rank_weight,
    )
    expected = _reference(*case, half_life, rank_weight, ordered=ordered)
    assert loss.shape == ()
    assert math.isclose(loss.item(), expected, rel_tol=1e-12)


def test_the_gradient_equals_finite_differences() -> None:
    predicted, utility, age = _case(3)
    tensor = torch.tensor(predicted, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([utility, age], dtype=torch.float64)
    selector_loss(tensor, labels[0], labels[1], half_life=10, rank_weight=0.2).backward()
    assert tensor.grad is not None
    for i, gradient in enumerate(tensor.grad.tolist()):
        sides = []
        for shift in (1e-6, -1e-6):
            moved = [v + shift * (j == i) for j, v in enumerate(predicted)]
            sides.append(_reference(moved, utility, age, 10, 0.2, ordered=False))
        assert math.isclose(gradient, (sides[0] - sides[1]) / 2e-6, rel_tol=1e-6, abs_tol=1e-9)


def test_a_label_loses_half_its_weight_in_a_half_life() -> None:
    loss = selector_loss(
        torch.tensor([0.0, 0.0], dtype=torch.float64),
        torch.tensor([1.0, 0.0], dtype=torch.float64),
        torch.tensor([10, 0]),
        half_life=10,
        rank_weight=0,
    )
    assert math.isclose(loss.item(), (0.5 * 0.5) / 1.5)


def test_single_precision_agrees_with_double() -> None:
    predicted, utility, age = (torch.tensor(values) for values in _case(5))
    single = selector_loss(predicted, utility, age, half_life=10, rank_weight=0.2)
    double = selector_loss(predicted.double(), utility.double(), age, half_life=10, rank_weight=0.2)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), double, rtol=1e-5, atol=0)
