"""The causal filters of linear attention, in Triton's interpreter, against PyTorch in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bas_opd.model.convolution import CausalFilter, filter_step

APPLY: Any = CausalFilter.apply


def reference(inputs: Tensor, taps: Tensor) -> Tensor:
    padded = F.pad(inputs, (taps.shape[1] - 1, 0))
    return F.silu(F.conv1d(padded, taps[:, None], groups=inputs.shape[1]))


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).detach().norm() / expected.detach().norm())


@pytest.mark.parametrize("tokens", [1, 3, 8, 40, 64, 65, 130])
@pytest.mark.parametrize("is_transposed", [True, False])
def test_values_and_gradients_are_those_of_a_convolution(tokens: int, is_transposed: bool) -> None:
    torch.manual_seed(tokens)
    given = torch.randn(2, tokens, 70).mT if is_transposed else torch.randn(2, 70, tokens)
    taps, reaching = torch.randn(70, 4), torch.randn(2, 70, tokens)
    inputs, ours = given.detach().requires_grad_(), taps.clone().requires_grad_()
    found = APPLY(inputs, ours)
    found.backward(reaching)
    exact, theirs = given.double().requires_grad_(), taps.double().requires_grad_()
    expected = reference(exact, theirs)
    expected.backward(reaching.double())
    assert distance(found, expected) < 1e-6
    for leaf, other in ((inputs, exact), (ours, theirs)):
        assert leaf.grad is not None
        assert other.grad is not None
        assert distance(leaf.grad, other.grad) < 1e-6


def test_a_second_derivative_is_refused() -> None:
    inputs = torch.randn(1, 5, 6, requires_grad=True)
    (gradient,) = torch.autograd.grad(
        APPLY(inputs, torch.randn(5, 4)).square().sum(), inputs, create_graph=True
    )
    with pytest.raises(RuntimeError, match="differentiate twice"):
        gradient.sum().backward()


def test_sums_of_half_precision_are_fp32() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(1, 100, 64).bfloat16().mT
    taps = torch.randn(64, 4)
    expected = reference(inputs.double(), taps.double())
    found = APPLY(inputs, taps)
    assert found.dtype is torch.bfloat16
    # One unit in the last place: the interpreter truncates where a GPU rounds.
    assert torch.allclose(found.double(), expected, rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("kept", [4, 8])
def test_steps_give_what_the_whole_sequence_gives(kept: int) -> None:
    torch.manual_seed(0)
    inputs, taps = torch.randn(3, 70, 9), torch.randn(70, 4)
    states = torch.zeros(3, 70, kept)
    steps = [filter_step(inputs[:, :, [t]], states, taps) for t in range(9)]
    assert torch.allclose(torch.cat(steps, dim=-1), reference(inputs, taps), atol=1e-5)
    assert torch.equal(states, inputs[:, :, -kept:])
