"""Fused parts of Qwen3.5's layers: the numbers of transformers' own, and chosen on a GPU only."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5VisionConfig
from transformers.models.qwen3_vl import modeling_qwen3_vl

from bas_opd.model import fused
from bas_opd.model.delta import register_delta_rule
from bas_opd.model.fused import centred_norm, gated_norm, register_fused_parts
from bas_opd.model.replacing import MODULES, without_replacements


def norm_of(kind: str, width: int = 24) -> Any:
    register_fused_parts()
    norm = getattr(modeling_qwen3_5, kind)(width)
    with torch.no_grad():
        norm.weight += torch.randn(width, generator=torch.Generator().manual_seed(1))
    return norm


def both(norm: Any, ours: Any, *given: Tensor) -> list[list[Tensor]]:
    """Return value and gradients by transformers and by us."""
    found = []
    for run in (type(norm).forward.reference, ours):
        norm.zero_grad()
        leaves = [x.clone().requires_grad_() for x in given]
        out = run(norm, *leaves)
        out.float().sin().sum().backward()
        found.append([out.detach(), norm.weight.grad.clone(), *(leaf.grad for leaf in leaves)])
    return found


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_fused_norm_is_that_of_the_reference(scale: float) -> None:
    torch.manual_seed(0)
    x, gate = scale * torch.randn(2, 3, 24), torch.randn(2, 3, 24)
    pairs = both(norm_of("Qwen3_5RMSNorm"), centred_norm, x)
    gated = both(norm_of("Qwen3_5RMSNormGated"), gated_norm, x, gate)
    for expected, found in (*zip(*pairs, strict=True), *zip(*gated, strict=True)):
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))


def test_a_fused_norm_keeps_the_precision_of_its_input() -> None:
    torch.manual_seed(0)
    x, gate = torch.randn(2, 3, 24).bfloat16(), torch.randn(2, 3, 24).bfloat16()
    for expected, found in (
        *zip(*both(norm_of("Qwen3_5RMSNorm"), centred_norm, x), strict=True),
        *zip(*both(norm_of("Qwen3_5RMSNormGated"), gated_norm, x, gate), strict=True),
    ):
        assert found.dtype is expected.dtype
        assert torch.allclose(found.float(), expected.float(), rtol=2e-2, atol=2e-2)


def test_a_cpu_computes_as_transformers_does(monkeypatch: pytest.MonkeyPatch) -> None:
    norm, x = norm_of("Qwen3_5RMSNorm"), torch.randn(2, 24)
    assert torch.equal(norm(x), type(norm).forward.reference(norm, x))
    called: list[str] = []
    monkeypatch.setattr(fused.F, "rms_norm", lambda x, *_, **__: called.append("fused") or x)
    norm(x)
    assert not called
    monkeypatch.setattr(fused, "is_fast", lambda device: True)
    norm(x)
    assert called == ["fused"]


def test_filters_are_transformers_own_without_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register_fused_parts()
    run: Any = modeling_qwen3_5.causal_conv1d_fn
    x, weight = torch.randn(2, 6, 5), torch.randn(6, 4)
    called: list[int] = []
    monkeypatch.setattr(fused.CausalFilter, "apply", lambda *given: called.append(1) or given[0])
    expected = run.reference(x, weight, activation="silu")
    assert torch.equal(run(x, weight, activation="silu"), expected)
    assert not called
    monkeypatch.setattr(fused, "has_kernels", lambda device: True)
    run(x, weight, activation="silu")
    assert called == [1]
    # Other activations and other numbers of taps are left to transformers, and so are rows packed
    # end to end, which it refuses or keeps apart.
    assert torch.equal(run(x, weight), run.reference(x, weight))
    three = weight[:, 1:].contiguous()
    expected = run.reference(x, three, activation="silu")
    assert torch.equal(run(x, three, activation="silu"), expected)
    monkeypatch.setattr(modeling_qwen3_5, "causal_conv1d_fn", lambda *_, **given: given)
    register_fused_parts()
    run = modeling_qwen3_5.causal_conv1d_fn
    for packed in ({"seq_idx": x}, {"cu_seq_lens_q": x}):
        assert run(x, weight, activation="silu", **packed) == {"activation": "silu", **packed}
    assert called == [1]


def test_steps_of_filters_are_transformers_own_where_the_kernel_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register_fused_parts()
    run: Any = modeling_qwen3_5.causal_conv1d_update
    called: list[int] = []
    monkeypatch.setattr(fused, "filter_step", lambda x, *_: called.append(1) or x)
    monkeypatch.setattr(fused, "has_kernels", lambda device: True)
    x, states, weight = torch.randn(2, 6, 1), torch.randn(2, 6, 4), torch.randn(6, 4)
    with torch.no_grad():
        run(x, states, weight, None, "silu")
        assert called == [1]
        for inputs, kept, taps, bias, activation in (
            (x, states, weight, None, None),
            (x, states, weight, torch.zeros(6), "silu"),
            (x, states, torch.randn(6, 3), None, "silu"),
            (x, states[:, :, 1:].contiguous(), weight, None, "silu"),
            (x, states.mT.contiguous().mT, weight, None, "silu"),
            (torch.randn(2, 6, 2), states, weight, None, "silu"),
        ):
            ours, theirs = kept.clone(), kept.clone()
            expected = run.reference(inputs, theirs, taps, bias, activation)
            assert torch.equal(run(inputs, ours, taps, bias, activation), expected)
            assert torch.equal(ours, theirs)
    run(x, states.clone(), weight, None, "silu")  # Its backward pass is that of the reference.
    assert called == [1]


@pytest.mark.parametrize("has_gpu", [False, True])
@pytest.mark.parametrize("qwen", [modeling_qwen3_5, modeling_qwen3_vl, modeling_qwen2_5_vl])
def test_places_of_pictures_are_read_on_the_host(
    monkeypatch: pytest.MonkeyPatch, qwen: Any, has_gpu: bool
) -> None:
    """Each layer of the vision tower reads them: on a GPU each would wait for it."""
    register_fused_parts()
    run = qwen.get_vision_attention_seqlens
    grid = torch.tensor([[1, 4, 6], [1, 2, 2]])
    read: list[torch.device] = []
    monkeypatch.setattr(Tensor, "cpu", lambda x: read.append(x.device) or x)
    monkeypatch.setattr(fused, "is_fast", lambda device: has_gpu)
    config = Qwen3_5VisionConfig()
    places, _ = run(grid, config, kwargs={})
    assert torch.equal(places, run.reference(grid, config, kwargs={})[0])
    assert places.tolist() == [0, 24, 28]
    assert bool(read) == has_gpu


@pytest.mark.parametrize("has_gpu", [False, True])
def test_so_are_places_of_windows(monkeypatch: pytest.MonkeyPatch, has_gpu: bool) -> None:
    register_fused_parts()
    qwen: Any = modeling_qwen2_5_vl
    run = qwen.get_vision_window_index
    read: list[torch.device] = []
    monkeypatch.setattr(Tensor, "cpu", lambda x: read.append(x.device) or x)
    monkeypatch.setattr(fused, "is_fast", lambda device: has_gpu)
    given = {"spatial_merge_size": 2, "window_size": 56, "patch_size": 14}
    grid = torch.tensor([[1, 4, 8]])
    for found, expected in zip(run(grid, **given), run.reference(grid, **given), strict=True):
        assert torch.equal(found, expected)
    assert bool(read) == has_gpu


def test_a_version_of_transformers_without_the_parts_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in MODULES:
        monkeypatch.setitem(sys.modules, name, ModuleType("without_parts"))
    register_fused_parts()
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name)
    register_fused_parts()


def test_for_a_while_layers_compute_as_transformers_has_them() -> None:
    register_fused_parts()
    register_delta_rule()
    qwen: Any = modeling_qwen3_5
    vl: Any = modeling_qwen3_vl

    def parts() -> list[Any]:
        norm = qwen.Qwen3_5RMSNorm.forward
        vision = vl.get_vision_attention_seqlens
        return [norm, qwen.causal_conv1d_fn, qwen.torch_chunk_gated_delta_rule, vision]

    ours = parts()
    with without_replacements():
        assert parts() == [each.reference for each in ours]
        assert not any(hasattr(each, "reference") for each in parts())
    assert parts() == ours


def test_registering_again_changes_nothing() -> None:
    register_fused_parts()
    before = modeling_qwen3_5.causal_conv1d_fn, modeling_qwen3_5.Qwen3_5RMSNorm.forward
    register_fused_parts()
    assert before == (modeling_qwen3_5.causal_conv1d_fn, modeling_qwen3_5.Qwen3_5RMSNorm.forward)
