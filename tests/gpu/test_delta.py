"""Linear attention as in Qwen3.5-4B: chunks against transformers, kernels against chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3_5TextConfig
from transformers.models.qwen3_5 import modeling_qwen3_5

from bas_opd.compute.compiling import has_triton
from bas_opd.model import delta, fused_delta
from bas_opd.model.delta import chunked_delta_rule, register_delta_rule
from bas_opd.model.delta_step import move_state
from bas_opd.model.fused_delta import can_fuse, fused_delta_rule
from bas_opd.model.shapes import TEXT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("length", [1, 64, 1053])
def test_values_and_gradients_are_those_of_the_reference(length: int) -> None:
    register_delta_rule()
    reference: Any = modeling_qwen3_5.torch_chunk_gated_delta_rule
    torch.manual_seed(0)
    wide = [torch.randn(2, length, 32, 128, device="cuda").bfloat16() for _ in range(3)]
    narrow = [torch.randn(2, length, 32, device="cuda") for _ in range(2)]
    state = torch.randn(2, 32, 128, 128, device="cuda")
    given = [*wide, -narrow[0].abs(), narrow[1].sigmoid(), state]
    found = []
    ours: Any = chunked_delta_rule
    for run in (reference.reference, ours):
        leaves = [x.detach().clone().requires_grad_() for x in given]
        query, key, value, g, beta, initial = leaves
        out, last = run(
            query,
            key,
            value,
            g=g,
            beta=beta,
            initial_state=initial,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        (out.float().sin().sum() + last.sin().sum()).backward()
        found.append([out.detach(), last.detach(), *(leaf.grad for leaf in leaves)])
    for expected, got in zip(*found, strict=True):
        assert expected is not None
        scale = float(expected.float().abs().max())
        assert torch.allclose(got.float(), expected.float(), rtol=0, atol=1e-2 * scale)
        error = (got.float() - expected.float()).norm() / expected.float().norm()
        assert float(error) < 1e-3


@torch.no_grad()
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_decoding_step_is_that_of_the_reference(precision: torch.dtype) -> None:
    torch.manual_seed(0)
    with torch.device("cuda"):
        build: Any = modeling_qwen3_5.Qwen3_5GatedDeltaNet
        mixer = build(Qwen3_5TextConfig(**TEXT), 0)
        mixed = torch.randn(5, mixer.conv_dim).to(precision)
        strengths, decays = torch.randn(2, 5, 32).to(precision)
        state = torch.randn(5, 32, 128, 128)
    query, key, value = mixed[:, None].split([2048, 2048, 4096], dim=-1)
    query, key = (x.unflatten(-1, (16, 128)).repeat_interleave(2, dim=2) for x in (query, key))
    register_delta_rule()
    reference: Any = modeling_qwen3_5.torch_recurrent_gated_delta_rule
    expected, last = reference.reference(
        query,
        key,
        value.unflatten(-1, (32, 128)),
        g=(-mixer.A_log.exp() * F.softplus(decays.float() + mixer.dt_bias))[:, None],
        beta=strengths.sigmoid()[:, None],
        initial_state=state.clone(),
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    found = move_state(mixer, mixed, strengths, decays, state)
    assert found.dtype is expected.dtype
    assert torch.allclose(found.float(), expected[:, 0].float(), rtol=1e-2, atol=1e-3)
    assert torch.allclose(state, last, rtol=1e-4, atol=1e-5)


def layer(batch: int, length: int, dtype: torch.dtype, *, starts: bool) -> dict[str, Tensor]:
    """Return inputs of 32 heads of width 128; some rows decay much, some hardly."""
    torch.manual_seed(length)
    wide = (torch.randn(batch, length, 32, 128, device="cuda").to(dtype) for _ in range(3))
    g, beta = (torch.randn(batch, length, 32, device="cuda") for _ in range(2))
    g = -torch.logspace(-3, 1, 32, device="cuda") * g.abs()
    given = dict(zip(("query", "key", "value"), wide, strict=True))
    given |= {"g": g, "beta": beta.sigmoid().to(dtype)}
    if starts:
        given["initial_state"] = torch.randn(batch, 32, 128, 128, device="cuda")
    return given


def outcome(rule: Callable[..., Any], given: dict[str, Tensor], **options: Any) -> list[Tensor]:
    """Return outputs and gradients, where what reaches the outputs is fixed and exact in bf16."""
    leaves = [x.detach().clone().requires_grad_() for x in given.values()]
    out, last = rule(
        **dict(zip(given, leaves, strict=True)),
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        **options,
    )
    torch.manual_seed(0)
    of_out, of_last = (torch.randn(x.shape, device="cuda").bfloat16() for x in (out, last))
    total = (out * of_out.to(out)).sum() + (last * of_last.to(last)).sum()
    return [out.detach(), last.detach(), *torch.autograd.grad(total, leaves)]


@pytest.fixture
def _triton() -> None:
    if not has_triton():
        pytest.skip("needs Triton")


@pytest.mark.usefixtures("_triton")
@pytest.mark.parametrize("starts", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 100, 1053])
@pytest.mark.parametrize("batch", [1, 4, 16])
def test_the_kernels_give_what_the_chunks_give(
    batch: int, length: int, dtype: torch.dtype, starts: bool
) -> None:
    """Compilers before Triton 3.7.1 are wrong on Hopper for other kernels of this rule."""
    given = layer(batch, length, dtype, starts=starts)
    assert can_fuse(given["query"], given["value"])
    exact = {name: x.float() for name, x in given.items()}
    found, expected = outcome(fused_delta_rule, given), outcome(chunked_delta_rule, exact)
    for name, ours, theirs in zip(("out", "last", *given), found, expected, strict=True):
        # The gradient of a decay is 0 where a single token finds no state: larger terms cancel.
        least = 1.0 if name == "g" else 1e-2
        error = float((ours.float() - theirs).norm() / theirs.norm().clamp(min=least))
        assert error < (4e-3 if ours.dtype is torch.bfloat16 else 2e-5), name
        # One wrong tile of many would hardly change the norm.
        largest = theirs.abs().max().clamp(min=least / 10)
        worst = float((ours.float() - theirs).abs().max() / largest)
        assert worst < (8e-3 if ours.dtype is torch.bfloat16 else 1e-4), name


@pytest.mark.usefixtures("_triton")
def test_the_kernels_are_as_exact_as_the_chunks() -> None:
    """Both against float64: tf32x3 and bf16 operands lose nothing that fp32 has."""
    given = layer(1, 1053, torch.bfloat16, starts=True)
    exact = outcome(chunked_delta_rule, {name: x.double() for name, x in given.items()})
    found = outcome(fused_delta_rule, given)
    plain = outcome(chunked_delta_rule, given)
    for name, ours, theirs, true in zip(("out", "last", *given), found, plain, exact, strict=True):
        error, other = (float((x.double() - true).norm() / true.norm()) for x in (ours, theirs))
        assert error < max(3 * other, 5e-6), name


@pytest.mark.usefixtures("_triton")
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_other_precisions_are_near(monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    monkeypatch.setattr(fused_delta, "PRECISION", precision)
    given = layer(2, 200, torch.float32, starts=True)
    found, expected = outcome(fused_delta_rule, given), outcome(chunked_delta_rule, given)
    for name, ours, theirs in zip(("out", "last", *given), found, expected, strict=True):
        error = float((ours - theirs).norm() / theirs.norm())
        assert error < (1e-2 if precision == "tf32" else 2e-5), name


@pytest.mark.usefixtures("_triton")
def test_the_kernels_give_the_same_bits_twice() -> None:
    """A missing barrier shows as numbers that change."""
    given = layer(4, 1053, torch.bfloat16, starts=True)
    first = outcome(fused_delta_rule, given)
    for _ in range(5):
        assert all(map(torch.equal, first, outcome(fused_delta_rule, given)))


@pytest.mark.usefixtures("_triton")
def test_a_gpu_computes_with_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "_has_fla", lambda: False)
    register_delta_rule()
    given = layer(2, 100, torch.bfloat16, starts=False)
    rule: Any = modeling_qwen3_5.torch_chunk_gated_delta_rule
    for ours, direct in zip(outcome(rule, given), outcome(fused_delta_rule, given), strict=True):
        assert torch.equal(ours, direct)
