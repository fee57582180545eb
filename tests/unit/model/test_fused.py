"""Fused parts of layers: chosen on a GPU only, and elsewhere what transformers computes."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from stage_fixtures import make_model
from torch import Tensor
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5VisionConfig
from transformers.models.qwen3_vl import modeling_qwen3_vl

from bas_opd.model import fused
from bas_opd.model.attention import NAME
from bas_opd.model.delta import register_delta_rule
from bas_opd.model.fused import register_fused_parts
from bas_opd.model.replacing import MODULES, without_replacements

KERNELS = ("_norm", "_gated", "_rotation")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lists which of our kernels would be launched; they return their first input."""
    found: list[str] = []
    for name in KERNELS:
        monkeypatch.setattr(fused, name, lambda x, *_, name=name: found.append(name) or x)
    return found


PARTS: Any = {
    "Qwen3_5RMSNorm": modeling_qwen3_5,
    "Qwen3_5RMSNormGated": modeling_qwen3_5,
    "Qwen3VLTextRMSNorm": modeling_qwen3_vl,
    "Qwen2_5_VLRMSNorm": modeling_qwen2_5_vl,
}


@pytest.mark.parametrize("kind", PARTS)
def test_norms_are_transformers_own_without_kernels(
    kind: str, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    register_fused_parts()
    norm = getattr(PARTS[kind], kind)(24)
    given = [torch.randn(2, 24) for _ in range(2 if "Gated" in kind else 1)]
    assert torch.equal(norm(*given), type(norm).forward.reference(norm, *given))
    assert not calls
    monkeypatch.setattr(fused, "has_kernels", lambda device: True)
    norm(*given)
    assert calls == ["_norm"]


@pytest.mark.parametrize("kind", ["Qwen3_5MLP", "Qwen3VLTextMLP", "Qwen2MLP", "Qwen2_5_VLMLP"])
def test_gated_layers_are_transformers_own_without_kernels(
    kind: str, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    register_fused_parts()
    config = SimpleNamespace(hidden_size=8, intermediate_size=12, hidden_act="silu")
    (module,) = [each for each in MODULES if hasattr(sys.modules[each], kind)]
    sizes = (12,) if kind == "Qwen3_5MLP" else ()
    layer = getattr(sys.modules[module], kind)(config, *sizes)
    x = torch.randn(3, 8)
    assert torch.equal(layer(x), type(layer).forward.reference(layer, x))
    assert not calls
    monkeypatch.setattr(fused, "has_kernels", lambda device: True)
    layer(x)
    assert calls == ["_gated"]
    layer.act_fn = torch.nn.GELU()
    layer(x)
    assert calls == ["_gated"]


@pytest.mark.parametrize("module", MODULES)
def test_rotations_are_transformers_own_without_kernels(
    module: str, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    register_fused_parts()
    family: Any = sys.modules[module]
    turns = [torch.randn(2, 5, 8) for _ in range(2)]
    rows = [torch.randn(2, 3, 5, 8) for _ in range(2)]
    patches = [torch.randn(5, 3, 8) for _ in range(2)]
    ways = (
        (family.apply_rotary_pos_emb, rows, turns),
        (family.apply_rotary_pos_emb_vision, patches, [turn[0] for turn in turns]),
    )
    for run, given, angles in ways:
        expected = run.reference(*given, *angles)
        for found, wanted in zip(run(*given, *angles), expected, strict=True):
            assert torch.equal(found, wanted)
    assert not calls
    monkeypatch.setattr(fused, "has_kernels", lambda device: True)
    for run, given, angles in ways:
        assert [x.shape for x in run(*given, *angles)] == [x.shape for x in given]
    assert calls == 4 * ["_rotation"]


@pytest.mark.parametrize("module", MODULES)
def test_pictures_are_attended_to_in_one_call_by_our_attention_only(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_fused_parts()
    asks: Any = sys.modules[module].is_flash_attention_requested  # type: ignore[attr-defined]
    names = (NAME, "sdpa", "flash_attention_2", None)
    configs = [SimpleNamespace(_attn_implementation=name) for name in names]
    assert [asks(config) for config in configs] == [False, False, True, False]
    monkeypatch.setattr(fused, "may_be_fast", lambda: True)
    assert [asks(config) for config in configs] == [True, False, True, False]


def test_norms_that_linear_layers_read_are_written_in_their_precision(
    small_qwen35: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of layers; the last norm, queries and keys are read by others too."""
    model = make_model(small_qwen35, precision=torch.bfloat16)
    written: list[tuple[int, torch.dtype]] = []

    def norm(x: Tensor, gate: Tensor | None, weight: Tensor, *rest: Any) -> Tensor:
        if gate is None:
            written.append((len(weight), rest[-1]))
        return x.to(rest[-1])

    monkeypatch.setattr(fused, "has_kernels", lambda device: True)
    monkeypatch.setattr(fused, "_norm", norm)
    monkeypatch.setattr(fused, "_gated", lambda x, y: x * y)
    monkeypatch.setattr(fused, "_rotation", lambda x, *_: x)
    monkeypatch.setattr(fused, "_filters", lambda *_: False)
    network: Any = model.network
    config = network.config.text_config
    with model.compute():
        network(input_ids=torch.arange(5, 12)[None], use_cache=False)
    of_layers = [dtype for width, dtype in written if width == config.hidden_size]
    assert of_layers == 2 * config.num_hidden_layers * [torch.bfloat16] + [torch.float32]
    assert {dtype for width, dtype in written if width == config.head_dim} == {torch.bfloat16}


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
