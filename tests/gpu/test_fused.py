"""Fused norms and filters at the shape of Qwen3.5-4B, against transformers' reference."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_vl import modeling_qwen3_vl

from bas_opd.model.convolution import CausalFilter, filter_step
from bas_opd.model.fused import centred_norm, gated_norm, plain_norm, register_fused_parts
from bas_opd.model.pointwise import Gated, Rotation

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


def both(
    reference: Any, ours: Any, given: list[Tensor], weight: Tensor | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Return value and gradients by the reference in fp32 and by us in the inputs' precision."""
    found = []
    for run, exact in ((reference, True), (ours, False)):
        leaves = [(x.float() if exact else x).detach().clone().requires_grad_() for x in given]
        if weight is not None:
            weight.grad = None
        out = run(*leaves)
        out.float().sin().sum().backward()
        weights = [] if weight is None else [weight.grad]
        found.append([out, *weights, *(leaf.grad for leaf in leaves)])
    return list(zip(*found, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_is_that_of_the_reference(dtype: torch.dtype) -> None:
    register_fused_parts()
    torch.manual_seed(0)
    kinds: Any = modeling_qwen3_5
    vl: Any = modeling_qwen3_vl
    for kind, ours, shape in (
        (kinds.Qwen3_5RMSNorm, centred_norm, (8424, 2560)),
        (kinds.Qwen3_5RMSNorm, centred_norm, (8424 * 16, 256)),  # of the queries of each head
        (kinds.Qwen3_5RMSNormGated, gated_norm, (8424 * 32, 128)),
        (vl.Qwen3VLTextRMSNorm, plain_norm, (8424, 2560)),
    ):
        norm = kind(shape[-1]).cuda()
        norm.weight.data += 0.1 * torch.randn_like(norm.weight)
        given = [torch.randn(shape, device="cuda").to(dtype)]
        if ours is gated_norm:
            given.append(torch.randn(shape, device="cuda").to(dtype))
        reference = partial(kind.forward.reference, norm)
        for expected, got in both(reference, partial(ours, norm), given, norm.weight):
            assert distance(got, expected) < (1e-5 if dtype is torch.float32 else 6e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gate_is_that_of_the_reference(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    given = [torch.randn(8424, 9216, device="cuda").to(dtype) for _ in range(2)]
    for expected, got in both(lambda x, y: F.silu(x) * y, Gated.apply, given):
        assert distance(got, expected) < (1e-5 if dtype is torch.float32 else 6e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("channels", "angles"), [(256, 64), (64, 64)])
def test_a_rotation_is_that_of_the_reference(
    dtype: torch.dtype, channels: int, angles: int
) -> None:
    register_fused_parts()
    torch.manual_seed(0)
    whole: Any = modeling_qwen3_5.apply_rotary_pos_emb
    phase = 6 * torch.rand(8, 1053, angles, device="cuda")
    given = [torch.randn(8, 1053, 16, channels, device="cuda").to(dtype)]
    turns = (phase.cos(), phase.sin())

    def reference(x: Tensor) -> Tensor:
        return whole.reference(x.transpose(1, 2), x.transpose(1, 2), *turns)[0]

    def ours(x: Tensor) -> Tensor:
        turn: Any = Rotation.apply
        return turn(x.transpose(1, 2), *turns)

    for expected, got in both(reference, ours, given):
        assert distance(got, expected) < (1e-5 if dtype is torch.float32 else 6e-3)
