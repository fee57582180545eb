"""Parts of layers that transformers computes in many small operations: on a GPU, in few.

Each operation is a kernel that must be started. On a CPU, and with reference kernels, nothing
changes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import SiLUActivation

from bas_opd.compute.compiling import computed_in, has_kernels, is_fast, may_be_fast
from bas_opd.model.attention import NAME
from bas_opd.model.convolution import CausalFilter
from bas_opd.model.pointwise import Gated, Norm, Rotation
from bas_opd.model.replacing import layers, qwen35_layers, replace


def register_fused_parts() -> None:
    """Let the layers, where they are loaded, choose how they compute; idempotent."""
    module = qwen35_layers()
    replace(module, "causal_conv1d_fn", _choosing_filter)
    for name, norm in NORMS.items():
        for family in layers():
            replace(getattr(family, name, None), "forward", partial(_choosing_norm, norm))
    for family in layers():
        for name in GATED_LAYERS:
            replace(getattr(family, name, None), "forward", _choosing_gate)
        replace(family, "apply_rotary_pos_emb", _choosing_rotation)
        replace(family, "apply_rotary_pos_emb_vision", _choosing_vision_rotation)
        replace(family, "is_flash_attention_requested", _choosing_joint)
        replace(family, "get_vision_attention_seqlens", _choosing_lengths)
        replace(family, "get_vision_window_index", _choosing_windows)


def round_inputs_of_linears(network: nn.Module) -> None:
    """Let norms that only linear layers read write what those compute with.

    Autocast would cast the same norm for each of the layers that read it. In the backward pass
    their gradients, which are in half precision, are then added in half precision too.
    """
    for layer in network.modules():
        for name in ("input_layernorm", "post_attention_layernorm"):
            if (norm := getattr(layer, name, None)) is not None:
                norm.is_read_by_linears = True


def centred_norm(norm: Any, x: Tensor) -> Tensor:
    """Compute Qwen3_5RMSNorm, whose weights are those above 1."""
    return _norm(x, None, norm.weight, 1.0, norm.eps, _written(norm, x, x.dtype))


def gated_norm(norm: Any, x: Tensor, gate: Tensor) -> Tensor:
    """Compute Qwen3_5RMSNormGated."""
    return _norm(x, gate, norm.weight, 0.0, norm.variance_epsilon, x.dtype)


def plain_norm(norm: Any, x: Tensor) -> Tensor:
    """Compute the norms of Qwen3-VL and Qwen2.5-VL."""
    # Their last product is with weights in fp32.
    dtype = _written(norm, x, torch.promote_types(x.dtype, norm.weight.dtype))
    return _norm(x, None, norm.weight, 0.0, norm.variance_epsilon, dtype)


NORMS = {
    "Qwen3_5RMSNorm": centred_norm,
    "Qwen3_5RMSNormGated": gated_norm,
    "Qwen3VLTextRMSNorm": plain_norm,
    "Qwen2_5_VLRMSNorm": plain_norm,
}
GATED_LAYERS = ("Qwen3_5MLP", "Qwen3VLTextMLP", "Qwen2MLP", "Qwen2_5_VLMLP")
_norm: Any = Norm.apply
_gated: Any = Gated.apply
_rotation: Any = Rotation.apply


def _written(norm: Any, x: Tensor, otherwise: torch.dtype) -> torch.dtype:
    """Return the precision that a norm is written in."""
    return computed_in(x) if getattr(norm, "is_read_by_linears", False) else otherwise


def _choosing_norm(
    fused: Callable[..., Tensor], reference: Callable[..., Tensor]
) -> Callable[..., Tensor]:
    def run(norm: nn.Module, x: Tensor, *inputs: Tensor) -> Tensor:
        return (fused if has_kernels(x.device) else reference)(norm, x, *inputs)

    return run


def _choosing_gate(reference: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(layer: Any, x: Tensor) -> Tensor:
        if not has_kernels(x.device) or not isinstance(layer.act_fn, nn.SiLU | SiLUActivation):
            return reference(layer, x)
        gate, value = layer.gate_proj(x), layer.up_proj(x)
        is_plain = gate.dtype is value.dtype
        return layer.down_proj(_gated(gate, value) if is_plain else layer.act_fn(gate) * value)

    return run


def _choosing_rotation(reference: Callable[..., Any]) -> Callable[..., Any]:
    def run(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
        if not has_kernels(q.device) or unsqueeze_dim != 1 or cos.ndim != 3:
            return reference(q, k, cos, sin, unsqueeze_dim)
        return _rotation(q, cos, sin), _rotation(k, cos, sin)

    return run


def _choosing_vision_rotation(reference: Callable[..., Any]) -> Callable[..., Any]:
    """The same for `[patch, head, channel]`."""

    def run(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
        if not has_kernels(q.device):
            return reference(q, k, cos, sin)
        given = (cos[None], sin[None])
        return tuple(_rotation(x.transpose(0, 1)[None], *given)[0].transpose(0, 1) for x in (q, k))

    return run


def _choosing_joint(reference: Callable[..., bool]) -> Callable[..., bool]:
    """Let the vision tower attend to all pictures in one call, which may split them itself."""

    def run(config: Any = None, *inputs: Any, **options: Any) -> bool:
        is_ours = getattr(config, "_attn_implementation", None) == NAME
        return (is_ours and may_be_fast()) or reference(config, *inputs, **options)

    return run


def _choosing_lengths(reference: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the places of pictures on the host, where each layer of the vision tower reads them."""

    def run(grid: Tensor, *inputs: Any, **options: Any) -> Any:
        places, longest = reference(grid, *inputs, **options)
        return places.cpu() if is_fast(grid.device) else places, longest

    return run


def _choosing_windows(reference: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the places of windows on the host, too; Qwen2.5-VL has them."""

    def run(grid: Tensor, *inputs: Any, **options: Any) -> Any:
        order, places = reference(grid, *inputs, **options)
        return order, places.cpu() if is_fast(grid.device) else places

    return run


def _choosing_filter(reference: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **options: Any,
    ) -> Tensor:
        # Of rows that are packed end to end, each begins anew.
        is_packed = any(options.get(name) is not None for name in ("seq_idx", "cu_seq_lens_q"))
        if (
            bias is not None
            or activation != "silu"
            or is_packed
            or not _filters(hidden_states, weight)
        ):
            return reference(hidden_states, weight, bias, activation=activation, **options)
        return CausalFilter.apply(hidden_states, weight)

    return run


def _filters(inputs: Tensor, taps: Tensor) -> bool:
    """Whether our own kernels filter these inputs; Triton wants a power of two of taps."""
    return _is_power(taps.shape[1]) and has_kernels(inputs.device)


def _is_power(size: int) -> bool:
    return size & (size - 1) == 0
