"""One token of a layer with linear attention (Qwen3.5) on a GPU, in few kernels.

transformers copies queries and keys for every head of the values, and computes decay and strength
in seven small operations. Such kernels take most of their time to start, and with few rows there
is little else. Here one kernel reads what the filter wrote, and moves the state in its place.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bas_opd.compute.compiling import has_kernels, launching_on, power_of_two
from bas_opd.model.cache import AssignedLinearLayer
from bas_opd.model.convolution import filter_step
from bas_opd.model.fused_delta import EPSILON
from bas_opd.model.replacing import qwen35_layers, replace
from bas_opd.model.rounded import TOGETHER, side_by_side

TILE = 32
"""Values of a head that one program computes."""


def register_delta_step() -> None:
    """Let layers with linear attention, where they are loaded, choose how they decode."""
    replace(getattr(qwen35_layers(), "Qwen3_5GatedDeltaNet", None), "forward", _choosing)


def take_step(layer: Any, hidden: Tensor, filtered: Tensor, states: Tensor) -> Tensor:
    """Compute a layer for one more token of each row, `[row, 1, channel]`.

    `filtered`, the last inputs of the filters, and `states` are moved on in their place.
    """
    mixed, strengths, decays = products(hidden, [getattr(layer, name) for name in TOGETHER])
    gates = layer.in_proj_z(hidden)
    mixed = filter_step(mixed.mT, filtered, layer.conv1d.weight.squeeze(1))
    out = move_state(layer, mixed[:, :, 0], strengths[:, 0], decays[:, 0], states)
    out = layer.norm(out.flatten(0, 1), gates.reshape(-1, layer.head_v_dim))
    return layer.out_proj(out.view(len(hidden), 1, -1))


def move_state(
    layer: Any, mixed: Tensor, strengths: Tensor, decays: Tensor, states: Tensor
) -> Tensor:
    """Move the states by one token, in their place, and read them: `[row, head, value]`.

    `mixed` has queries, keys and values, `[row, channel]`; `strengths` and `decays` are what the
    layer makes both of, `[row, head]`. States are read and written once.
    """
    kernels: Any = importlib.import_module("bas_opd.model.triton_delta")
    rows, heads, width, wide = states.shape
    out = mixed.new_empty(rows, heads, wide)
    with launching_on(states):
        kernels.decode[(rows * heads, wide // TILE)](
            *(mixed, strengths, decays, layer.A_log, layer.dt_bias, states, out),
            *(mixed.stride(0), strengths.stride(0), decays.stride(0), width**-0.5, EPSILON),
            heads=heads,
            shared=heads // layer.num_k_heads,
            width=width,
            wide=wide,
            tile=TILE,
        )
    return out


def products(inputs: Tensor, layers: Sequence[Any]) -> Sequence[Tensor]:
    """Return what linear layers make of the same inputs, by one product where that is possible."""
    weights = side_by_side(layers)
    if weights is None:
        return [layer(inputs) for layer in layers]
    return F.linear(inputs, weights).split([layer.out_features for layer in layers], dim=-1)


def _choosing(reference: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(
        layer: Any,
        hidden_states: Tensor,
        cache_params: Any = None,
        attention_mask: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        kept = _kept(layer, hidden_states, cache_params)
        # Rows packed end to end are several, whatever the shape says.
        if kept is None or attention_mask is not None or options.get("cu_seq_lens_q") is not None:
            return reference(
                layer,
                hidden_states,
                cache_params=cache_params,
                attention_mask=attention_mask,
                **options,
            )
        return take_step(layer, hidden_states, *kept)

    return run


def _kept(layer: Any, hidden: Tensor, cache: Any) -> tuple[Tensor, Tensor] | None:
    """Return what a layer keeps of earlier tokens, if its kernels take the next one."""
    if hidden.shape[1] != 1 or torch.is_grad_enabled() or not has_kernels(hidden.device):
        return None
    own = None if cache is None else cache.layers[layer.layer_idx]
    if not isinstance(own, AssignedLinearLayer):
        return None
    filtered, states = own.conv_states[0], own.recurrent_states[0]
    if filtered is None or states is None or not fits(layer, filtered, states):
        return None
    return filtered, states


def fits(layer: Any, filtered: Tensor, states: Tensor) -> bool:
    """Whether the kernels fit: Triton wants powers of two."""
    width, wide = states.shape[2:]
    taps = layer.conv_kernel_size
    return (
        layer.conv1d.bias is None
        and layer.activation == "silu"
        and all(size == power_of_two(size) for size in (taps, filtered.shape[2], width))
        and filtered.shape[2] >= taps
        and filtered.is_contiguous()
        and wide % TILE == 0
        and states.dtype is torch.float32
        and states.is_contiguous()
    )
