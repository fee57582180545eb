"""One token of a layer with linear attention, in Triton's interpreter, against transformers."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen3_5TextConfig
from transformers.models.qwen3_5 import modeling_qwen3_5

from bas_opd.model import delta_step, fused
from bas_opd.model.cache import AssignedLinearLayer
from bas_opd.model.delta_step import move_state, register_delta_step
from bas_opd.model.rounded import TOGETHER, RoundedLinears, side_by_side


@pytest.fixture
def layer(request: pytest.FixtureRequest) -> Any:
    """A layer with these heads of values, and half as many of queries and keys."""
    heads, width, wide = request.param
    torch.manual_seed(0)
    config = Qwen3_5TextConfig(
        hidden_size=48,
        num_hidden_layers=1,
        linear_num_value_heads=heads,
        linear_num_key_heads=heads // 2,
        linear_key_head_dim=width,
        linear_value_head_dim=wide,
    )
    build: Any = modeling_qwen3_5.Qwen3_5GatedDeltaNet
    found = build(config, 0)
    for parameter in found.parameters():
        parameter.data.normal_(0, 0.3)
    # From decays that are almost 1 to those that forget at once.
    found.dt_bias.data = torch.linspace(-25, 30, heads)
    return found.requires_grad_(False)


def kept(layer: Any, rows: int) -> SimpleNamespace:
    """Return a cache of earlier tokens."""
    own: Any = AssignedLinearLayer()
    own.conv_states[0] = torch.randn(rows, layer.conv_dim, layer.conv_kernel_size)
    shape = (rows, layer.num_v_heads, layer.head_k_dim, layer.head_v_dim)
    own.recurrent_states[0] = torch.randn(shape)
    own.has_previous_state[0] = True
    cache = SimpleNamespace(layers=[own])
    cache.has_previous_state = lambda *_, **__: True
    cache.is_recording_past = lambda *_, **__: False
    cache.get_conv_state = lambda *_, **__: own.conv_states[0]
    cache.get_recurrent_state = lambda *_, **__: own.recurrent_states[0]
    cache.update_recurrent_state = lambda states, *_, **__: own.update_recurrent_state(states)
    return cache


def states_of(cache: SimpleNamespace) -> list[Tensor]:
    (own,) = cache.layers
    return [own.conv_states[0], own.recurrent_states[0]]


@torch.no_grad()
@pytest.mark.parametrize("layer", [(4, 16, 32), (2, 32, 64)], indirect=True)
@pytest.mark.parametrize("are_rounded", [False, True])
def test_steps_are_those_of_transformers(
    layer: Any, are_rounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_delta_step()
    forward: Any = modeling_qwen3_5.Qwen3_5GatedDeltaNet.forward
    for module in (delta_step, fused):
        monkeypatch.setattr(module, "has_kernels", lambda _: True)
    rounded = RoundedLinears(layer, torch.float32)
    rounded.refresh()
    theirs = kept(layer, 3)
    ours, places = copy.deepcopy(theirs), None
    for _ in range(3):
        hidden = torch.randn(3, 1, 48)
        expected = forward.reference(layer, hidden, cache_params=theirs)
        with rounded.lent() if are_rounded else torch.no_grad():
            together = side_by_side([getattr(layer, name) for name in TOGETHER])
            assert (together is not None) == are_rounded
            found = layer(hidden, cache_params=ours)
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)
        places = places or [x.data_ptr() for x in states_of(ours)]
        assert places == [x.data_ptr() for x in states_of(ours)]
    for found, expected in zip(states_of(ours), states_of(theirs), strict=True):
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("layer", [(4, 16, 32)], indirect=True)
def test_what_is_rounded_is_rounded_where_tokens_are_computed_together(layer: Any) -> None:
    """The strength is in half precision there, and sampling must not differ from scoring."""
    mixed, states = torch.randn(2, layer.conv_dim).half(), torch.randn(2, 4, 16, 32)
    strengths, decays = torch.randn(2, 2, 4).half()
    is_near = []
    own = states.clone()
    assert move_state(layer, mixed, strengths, decays, own).dtype is torch.float16
    for strength in (strengths.sigmoid(), strengths.float().sigmoid()):
        exact = torch.logit(strength.double()).float()  # In fp32 nothing is rounded.
        other = states.clone()
        move_state(layer, mixed.float(), exact, decays, other)
        is_near.append(torch.allclose(own, other, rtol=1e-5, atol=1e-5))
    assert is_near == [True, False]


@torch.no_grad()
@pytest.mark.parametrize("layer", [(4, 16, 32)], indirect=True)
def test_weak_decays_keep_their_digits(layer: Any) -> None:
    """log(1 + exp(x)) of a small power is that power, not what is left of 1 + power."""
    layer.A_log.fill_(10.0)
    layer.dt_bias.copy_(torch.tensor([-12.0, -15.0, -18.0, 25.0]))
    states = torch.ones(1, 4, 16, 32)
    mixed, still = torch.zeros(1, layer.conv_dim), torch.full((1, 4), -200.0)
    move_state(layer, mixed, still, torch.zeros(1, 4), states)
    exact = -layer.A_log.double().exp() * torch.nn.functional.softplus(layer.dt_bias.double())
    assert torch.allclose(states[0, :, 0, 0].double(), exact.exp(), rtol=1e-5)
