"""Norms, gates and rotations in Triton's interpreter, against PyTorch in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.qwen3_5 import modeling_qwen3_5 as layers

from bas_opd.model.pointwise import Gated, Norm, Rotation

NORM: Any = Norm.apply
GATED: Any = Gated.apply
ROTATION: Any = Rotation.apply


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).detach().norm() / expected.detach().norm())


def compare(ours: Any, theirs: Any, *given: Tensor, within: float = 1e-6) -> None:
    """Compare values and all gradients, in float64 on their side."""
    leaves = [x.detach().clone().requires_grad_() for x in given]
    exact = [x.detach().double().requires_grad_() for x in given]
    found, expected = ours(*leaves), theirs(*exact)
    reaching = torch.randn(expected.shape, generator=torch.Generator().manual_seed(9))
    found.backward(reaching.to(found.dtype))
    expected.backward(reaching.double())
    assert distance(found, expected) < within
    for leaf, other in zip(leaves, exact, strict=True):
        assert leaf.grad is not None
        assert other.grad is not None
        assert leaf.grad.dtype is leaf.dtype
        assert distance(leaf.grad, other.grad) < within


def normed(x: Tensor, weight: Tensor, above: float) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * (above + weight)


@pytest.mark.parametrize("width", [24, 128, 2560])
@pytest.mark.parametrize("above", [0.0, 1.0])
def test_a_norm_is_that_of_pytorch(width: int, above: float) -> None:
    torch.manual_seed(width)
    compare(
        lambda x, weight: NORM(x, None, weight, above, 1e-6, torch.float32),
        lambda x, weight: normed(x, weight, above),
        torch.randn(3, 7, width),
        torch.randn(width),
    )


def test_a_program_has_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bas_opd.model.pointwise.PROGRAMS", 2)
    torch.manual_seed(0)
    compare(
        lambda x, weight: NORM(x, None, weight, 1.0, 1e-6, torch.float32),
        lambda x, weight: normed(x, weight, 1.0),
        torch.randn(301, 128),
        torch.randn(128),
    )


def test_a_norm_reads_a_part_of_each_row() -> None:
    """As the queries of Qwen3.5, whose gates lie beside them."""
    torch.manual_seed(0)
    compare(
        lambda both, weight: NORM(both.chunk(2, -1)[0], None, weight, 1.0, 1e-6, torch.float32),
        lambda both, weight: normed(both.chunk(2, -1)[0], weight, 1.0),
        torch.randn(2, 5, 3, 64),
        torch.randn(32),
    )


def test_a_gate_may_be_a_part_of_each_row() -> None:
    torch.manual_seed(0)
    compare(
        lambda x, both, weight: NORM(x, both.chunk(2, -1)[1], weight, 0.0, 1e-6, torch.float32),
        lambda x, both, weight: normed(x, weight, 0.0) * F.silu(both.chunk(2, -1)[1]),
        torch.randn(5, 3, 32),
        torch.randn(5, 3, 64),
        torch.randn(32),
    )


@pytest.mark.parametrize("ways", [lambda x: x.expand(6, 4, 32), lambda x: x.mT.expand(6, 32, 4).mT])
def test_gradients_may_lie_in_memory_in_any_way(ways: Any) -> None:
    torch.manual_seed(0)
    given, weight = torch.randn(6, 4, 32), torch.randn(32)
    reaching = ways(torch.randn(1, 4, 32))
    turns = [torch.randn(1, 6, 16) for _ in range(2)]
    for run in (
        lambda x: NORM(x, None, weight, 1.0, 1e-6, torch.float32),
        lambda x: GATED(x, x + 1),
        lambda x: ROTATION(x.transpose(0, 1)[None], *turns)[0].transpose(0, 1),
    ):
        found = []
        for gradient in (reaching, reaching.contiguous()):
            x = given.clone().requires_grad_()
            run(x).backward(gradient)
            found.append(x.grad)
        assert torch.equal(*found)


def test_a_gated_norm_is_that_of_pytorch() -> None:
    torch.manual_seed(0)
    compare(
        lambda x, gate, weight: NORM(x, gate, weight, 0.0, 1e-6, torch.float32),
        lambda x, gate, weight: normed(x, weight, 0.0) * F.silu(gate),
        torch.randn(50, 48),
        torch.randn(50, 48),
        torch.randn(48),
    )


def test_the_gradient_of_a_frozen_weight_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    backward = Norm.backward
    monkeypatch.setattr(
        Norm, "backward", lambda *given: found.append(backward(*given)) or found[-1]
    )
    for learns in (False, True):
        x, weight = torch.randn(5, 32, requires_grad=True), torch.randn(32, requires_grad=learns)
        NORM(x, None, weight, 1.0, 1e-6, torch.float32).sum().backward()
    assert [gradients[2] is not None for gradients in found] == [False, True]


def test_a_norm_is_rounded_once() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(9, 64), torch.randn(64)
    found = NORM(x, None, weight, 1.0, 1e-6, torch.bfloat16)
    assert found.dtype is torch.bfloat16
    # One unit in the last place: the interpreter truncates where a GPU rounds.
    assert torch.allclose(found.double(), normed(x.double(), weight.double(), 1.0), rtol=2**-7)


def test_a_gate_is_that_of_pytorch() -> None:
    torch.manual_seed(0)
    compare(
        GATED,
        lambda gate, value: F.silu(gate) * value,
        torch.randn(3, 1025),
        torch.randn(3, 1025),
    )


def test_a_gate_reads_tensors_that_are_not_contiguous() -> None:
    torch.manual_seed(0)
    compare(
        lambda both: GATED(*both.chunk(2, -1)),
        lambda both: F.silu(both.chunk(2, -1)[0]) * both.chunk(2, -1)[1],
        torch.randn(6, 40),
    )


@pytest.mark.parametrize(("heads", "channels", "angles"), [(3, 32, 8), (4, 16, 16), (1, 40, 12)])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_rotation_is_that_of_transformers(
    heads: int, channels: int, angles: int, rows: int
) -> None:
    torch.manual_seed(0)
    cosines, sines = (torch.randn(rows, 6, angles) for _ in range(2))

    def theirs(x: Tensor) -> Tensor:
        rotated: Any = layers.apply_rotary_pos_emb
        rotated = getattr(rotated, "reference", rotated)
        return rotated(x.transpose(1, 2), x.transpose(1, 2), cosines, sines)[0]

    compare(
        lambda x: ROTATION(x.transpose(1, 2), cosines, sines),
        theirs,
        torch.randn(2, 6, heads, channels),
    )
