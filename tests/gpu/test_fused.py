"""Fused norms and filters at the shape of Qwen3.5-4B, against transformers' reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_5 import modeling_qwen3_5

from bas_opd.model.convolution import CausalFilter, filter_step
from bas_opd.model.fused import centred_norm, gated_norm, register_fused_parts

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

APPLY: Any = CausalFilter.apply
CHANNELS = 8192


def distance(found: Tensor, expected: Tensor) -> float:
    exact = expected.detach().double()
    return float((found.detach().double() - exact).norm() / exact.norm())


def convolution(inputs: Tensor, taps: Tensor) -> Tensor:
    register_fused_parts()
    whole: Any = modeling_qwen3_5.causal_conv1d_fn
    return whole.reference(inputs, taps, activation="silu")


@pytest.mark.parametrize(("rows", "tokens"), [(1, 1), (2, 64), (16, 100), (8, 1053)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_filter_is_that_of_the_reference(
    rows: int, tokens: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    given = torch.randn(rows, tokens, CHANNELS, device="cuda").to(dtype)
    taps = torch.randn(CHANNELS, 4, device="cuda")
    reaching = torch.randn(rows, CHANNELS, tokens, device="cuda").to(dtype)
    found = []
    for run in (convolution, APPLY):
        exact = run is convolution  # in fp32 on the same inputs
        inputs = (given.float() if exact else given).detach().clone().requires_grad_()
        weight = taps.clone().requires_grad_()
        out = run(inputs.mT, weight)
        out.backward(reaching.to(out.dtype))
        found.append([out, inputs.grad, weight.grad])
    for expected, got in zip(*found, strict=True):
        assert distance(got, expected) < (1e-5 if dtype is torch.float32 else 4e-3)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_of_a_filter_is_that_of_the_reference(dtype: torch.dtype) -> None:
    register_fused_parts()
    torch.manual_seed(0)
    inputs = torch.randn(224, 1, CHANNELS, device="cuda").to(dtype).mT
    states = torch.randn(224, CHANNELS, 4, device="cuda").to(dtype)
    taps, theirs = torch.randn(CHANNELS, 4, device="cuda"), states.clone()
    reference: Any = modeling_qwen3_5.causal_conv1d_update
    expected = reference.reference(inputs, theirs, taps, None, "silu")
    found = filter_step(inputs, states, taps)
    assert torch.equal(states, theirs)
    assert distance(found, expected) < (1e-6 if dtype is torch.float32 else 4e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_is_that_of_the_reference(dtype: torch.dtype) -> None:
    register_fused_parts()
    torch.manual_seed(0)
    kinds: Any = modeling_qwen3_5
    for kind, ours, shape in (
        (kinds.Qwen3_5RMSNorm, centred_norm, (8424, 2560)),
        (kinds.Qwen3_5RMSNorm, centred_norm, (8424 * 16, 256)),  # of the queries of each head
        (kinds.Qwen3_5RMSNormGated, gated_norm, (8424 * 32, 128)),
    ):
        norm = kind(shape[-1]).cuda()
        norm.weight.data += 0.1 * torch.randn_like(norm.weight)
        given = [torch.randn(shape, device="cuda").to(dtype)]
        if ours is gated_norm:
            given.append(torch.randn(shape, device="cuda").to(dtype))
        found = []
        for run in (kind.forward.reference, ours):
            norm.zero_grad()
            leaves = [x.clone().requires_grad_() for x in given]
            out = run(norm, *leaves)
            out.float().sin().sum().backward()
            found.append([out, norm.weight.grad.clone(), *(leaf.grad for leaf in leaves)])
        for expected, got in zip(*found, strict=True):
            assert got.dtype is expected.dtype
            assert distance(got, expected) < (1e-4 if dtype is torch.float32 else 1e-2)
