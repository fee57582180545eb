"""When a layer with linear attention takes the kernels of one token."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from transformers.models.qwen3_5 import modeling_qwen3_5

from bas_opd.model import delta_step
from bas_opd.model.cache import AssignedLinearLayer
from bas_opd.model.delta_step import products, register_delta_step

LAYER: Any = SimpleNamespace(
    layer_idx=0,
    activation="silu",
    conv_kernel_size=4,
    conv1d=SimpleNamespace(bias=None),
)
HIDDEN = torch.zeros(2, 1, 8)


def cache_of(**changed: torch.Tensor | None) -> Any:
    own: Any = AssignedLinearLayer()
    own.conv_states[0] = changed.get("filtered", torch.zeros(2, 6, 4))
    own.recurrent_states[0] = changed.get("states", torch.zeros(2, 3, 16, 32))
    return SimpleNamespace(layers=[own])


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(delta_step, "has_kernels", lambda _: True)
    monkeypatch.setattr(delta_step, "take_step", lambda *_: "kernels")
    reference: Any = Mock(return_value="transformers")
    return delta_step._choosing(reference)


@torch.no_grad()
def test_kernels_take_one_more_token(run: Any) -> None:
    assert run(LAYER, HIDDEN, cache_params=cache_of()) == "kernels"
    assert run(LAYER, HIDDEN, cache_of(), None, cu_seq_lens_q=None) == "kernels"


@torch.no_grad()
def test_all_else_is_left_to_transformers(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_left(layer: Any = LAYER, hidden: Any = HIDDEN, **options: Any) -> bool:
        given = {"cache_params": cache_of()} | options
        return run(layer, hidden, **given) == "transformers"

    assert is_left(hidden=torch.zeros(2, 2, 8))
    assert is_left(cache_params=None)
    assert is_left(cache_params=SimpleNamespace(layers=[object()]))
    assert is_left(attention_mask=torch.ones(2, 1))
    assert is_left(cu_seq_lens_q=torch.tensor([0, 2]))
    for filtered in (None, torch.zeros(2, 6, 3), torch.zeros(2, 6, 2), torch.zeros(2, 4, 6).mT):
        assert is_left(cache_params=cache_of(filtered=filtered))
    for shape in ((2, 3, 12, 32), (2, 3, 16, 48)):
        assert is_left(cache_params=cache_of(states=torch.zeros(shape)))
    for states in (None, torch.zeros(2, 3, 16, 32).half(), torch.zeros(2, 3, 32, 32)[:, :, ::2]):
        assert is_left(cache_params=cache_of(states=states))
    biased = SimpleNamespace(bias=torch.zeros(6))
    for changed in ({"activation": "gelu"}, {"conv1d": biased}, {"conv_kernel_size": 3}):
        assert is_left(SimpleNamespace(**{**vars(LAYER), **changed}))
    with torch.enable_grad():
        assert is_left()
    monkeypatch.setattr(delta_step, "has_kernels", lambda _: False)
    assert is_left()


def test_it_is_registered_once() -> None:
    register_delta_step()
    forward: Any = modeling_qwen3_5.Qwen3_5GatedDeltaNet.forward
    register_delta_step()
    assert modeling_qwen3_5.Qwen3_5GatedDeltaNet.forward is forward
    assert not hasattr(forward.reference, "reference")


def test_layers_of_other_kinds_multiply_by_themselves() -> None:
    class Doubled(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    layers, inputs = [nn.Linear(8, 3, bias=False), Doubled(8, 2)], torch.randn(4, 8)
    for layer, found in zip(layers, products(inputs, layers), strict=True):
        assert torch.equal(found, layer(inputs))
