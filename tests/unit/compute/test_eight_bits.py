"""Tensors in 8 bits: how far they are from what they were."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bas_opd.compute import eight_bits
from bas_opd.compute.eight_bits import BLOCK, is_packed, packed_bytes, scale_shape, unpack

SHAPES = [(3, 64), (5, 256), (2, 700), (4, 8, 40), (0, 300), (1, 257)]


def pack(values: Tensor, *, signed: bool, seed: int = 1) -> tuple[Tensor, Tensor]:
    noise = torch.rand(values.shape, generator=torch.Generator().manual_seed(seed))
    return eight_bits.pack(values, noise, signed=signed)


def wide(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Return values of both signs over three decades."""
    generator = torch.Generator().manual_seed(seed)
    sizes = 10 ** (-3 * torch.rand(shape, generator=generator))
    return sizes * torch.randn(shape, generator=generator).sign()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("signed", "bound"), [(True, 0.096), (False, 0.047)])
def test_a_value_keeps_its_size_within_a_level(
    shape: tuple[int, ...], signed: bool, bound: float
) -> None:
    values = wide(shape) if signed else wide(shape).abs()
    levels, scales = pack(values, signed=signed)
    assert levels.dtype is torch.uint8
    assert levels.shape == shape
    assert scales.shape == scale_shape(shape)
    assert levels.nbytes + scales.nbytes == packed_bytes(shape)
    found = unpack(levels, scales, signed=signed)
    assert ((found - values).abs() <= bound * values.abs()).all()


@pytest.mark.parametrize("signed", [True, False])
def test_zero_and_the_largest_of_a_block_are_exact(signed: bool) -> None:
    values = torch.zeros(2, 2 * BLOCK)
    values[0, 5], values[1, BLOCK] = 3.7e-9, 1.3e30
    found = unpack(*pack(values, signed=signed), signed=signed)
    assert torch.equal(found, values)


def test_a_small_value_that_may_be_divided_by_never_becomes_zero() -> None:
    values = torch.full((1, 256), 1e-9)
    values[0, 0] = 1.0
    assert (unpack(*pack(values, signed=False), signed=False) > 0).all()
    assert (unpack(*pack(values, signed=True), signed=True)[0, 1:] == 0).all()


def test_what_was_unpacked_is_packed_as_it_was() -> None:
    values = wide((7, 600))
    levels, scales = pack(values, signed=True)
    again = pack(unpack(levels, scales, signed=True), signed=True)
    assert torch.equal(again[0], levels)
    assert torch.equal(again[1], scales)


def test_rows_are_packed_apart() -> None:
    values, noise = wide((9, 300)), torch.rand(9, 300)
    whole = eight_bits.pack(values, noise, signed=True)
    cuts = zip(values.split([2, 4, 3]), noise.split([2, 4, 3]), strict=True)
    parts = [eight_bits.pack(*cut, signed=True) for cut in cuts]
    assert torch.equal(whole[0], torch.cat([levels for levels, _ in parts]))
    assert torch.equal(whole[1], torch.cat([scales for _, scales in parts]))


@pytest.mark.parametrize("signed", [True, False])
def test_on_average_a_value_is_kept(signed: bool) -> None:
    values = wide((2, 256)) if signed else wide((2, 256)).abs()
    found = [unpack(*pack(values, signed=signed, seed=n), signed=signed) for n in range(400)]
    assert torch.allclose(torch.stack(found).mean(0), values, rtol=0.01, atol=0)


def test_short_rows_and_vectors_are_not_packed() -> None:
    assert [is_packed(shape) for shape in [(4, 64), (64, 4), (10_000,), (), (2, 8, 8)]] == [
        True, False, False, False, True,
    ]  # fmt: skip
