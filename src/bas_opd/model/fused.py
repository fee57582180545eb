"""Parts of layers that transformers computes in many small operations: on a GPU, in few.

Each operation is a kernel that must be started. On a CPU, and with reference kernels, nothing
changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bas_opd.compute.compiling import has_kernels, is_fast
from bas_opd.model.convolution import CausalFilter, filter_step
from bas_opd.model.replacing import layers, qwen35_layers, replace


def register_fused_parts() -> None:
    """Let the layers, where they are loaded, choose how they compute; idempotent."""
    module = qwen35_layers()
    norm, gated = (getattr(module, f"Qwen3_5RMSNorm{kind}", None) for kind in ("", "Gated"))
    replace(norm, "forward", _choosing_norm(centred_norm))
    replace(gated, "forward", _choosing_norm(gated_norm))
    replace(module, "causal_conv1d_fn", _choosing_filter)
    replace(module, "causal_conv1d_update", _choosing_filter_step)
    for family in layers():
        replace(family, "get_vision_attention_seqlens", _choosing_lengths)
        replace(family, "get_vision_window_index", _choosing_windows)


def centred_norm(norm: Any, x: Tensor) -> Tensor:
    """Compute Qwen3_5RMSNorm, whose weights are those above 1, by PyTorch's fused operation."""
    weight = 1.0 + norm.weight.float()
    return F.rms_norm(x.float(), weight.shape, weight, norm.eps).type_as(x)


def gated_norm(norm: Any, x: Tensor, gate: Tensor) -> Tensor:
    """Compute Qwen3_5RMSNormGated with PyTorch's fused norm."""
    found = F.rms_norm(x.float(), norm.weight.shape, eps=norm.variance_epsilon)
    return (norm.weight * found.to(x.dtype) * F.silu(gate.float())).to(x.dtype)


def _choosing_norm(fused: Callable[..., Tensor]) -> Callable[[Any], Any]:
    def choosing(reference: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def run(norm: nn.Module, x: Tensor, *inputs: Tensor) -> Tensor:
            # On AMD's GPUs the weights' gradient of the fused operation has been reported as wrong.
            is_fused = is_fast(x.device) and torch.version.hip is None
            return (fused if is_fused else reference)(norm, x, *inputs)

        return run

    return choosing


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


def _choosing_filter_step(reference: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(
        hidden_states: Tensor,
        conv_state: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
    ) -> Tensor:
        if (
            bias is not None
            or activation != "silu"
            or torch.is_grad_enabled()
            or hidden_states.shape[2] != 1
            or conv_state.shape[2] < weight.shape[1]
            or not conv_state.is_contiguous()
            or not _is_power(conv_state.shape[2])
            or not _filters(hidden_states, weight)
        ):
            return reference(hidden_states, conv_state, weight, bias, activation)
        return filter_step(hidden_states, conv_state, weight)

    return run


def _filters(inputs: Tensor, taps: Tensor) -> bool:
    """Whether our own kernels filter these inputs; Triton wants a power of two of taps."""
    return _is_power(taps.shape[1]) and has_kernels(inputs.device)


def _is_power(size: int) -> bool:
    return size & (size - 1) == 0
