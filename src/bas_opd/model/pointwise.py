"""Norms, gates and rotations on a GPU: one kernel each way.

transformers computes each in five to twelve operations, most of them casts. Here inputs are read
once, in their own precision, and computed in fp32. What is written is rounded once.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bas_opd.compute.compiling import launching_on, power_of_two

WIDE = 2048
"""Elements that a program has at a time."""
PROGRAMS = 512
"""At most, in the backward pass of a norm: each adds up its own gradient of the weights."""


class Norm(torch.autograd.Function):
    """x / rms(x) * (weight + above), times silu(gate) if there is one, in a precision."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gate: Tensor | None,
        weight: Tensor,
        above: float,
        epsilon: float,
        dtype: torch.dtype,
    ) -> Tensor:
        rows, gates = _rows(x), x if gate is None else _rows(gate)
        out = torch.empty(x.shape, dtype=dtype, device=x.device)
        scales = torch.empty(len(rows), dtype=torch.float32, device=x.device)
        shape = _shape(rows, gate)
        with launching_on(x):
            _kernels().norm[(-(-len(rows) // shape["tile"]),)](
                *(rows, gates, weight, out, scales),
                *(len(rows), rows.stride(0), gates.stride(0), above, epsilon),
                **shape,
            )
        ctx.save_for_backward(x, gate, weight, scales)
        ctx.above = above
        return out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor | None, ...]:
        x, gate, weight, scales = ctx.saved_tensors
        rows, gates = _rows(x), x if gate is None else _rows(gate)
        learns, shape = ctx.needs_input_grad[2], _shape(rows, gate)
        of_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        of_gate = (
            None if gate is None else torch.empty(gate.shape, dtype=gate.dtype, device=x.device)
        )
        programs = min(PROGRAMS, -(-len(rows) // shape["tile"]))
        of_weight = weight.new_empty(programs, len(weight), dtype=torch.float32)
        with launching_on(x):
            _kernels().norm_back[(programs,)](
                *(rows, gates, weight, scales, gradients[0].contiguous()),
                *(of_x, of_x if of_gate is None else of_gate, of_weight),
                *(len(rows), rows.stride(0), gates.stride(0), ctx.above),
                **shape,
                learns=learns,
            )
        of_weights = of_weight.sum(0).to(weight.dtype) if learns else None
        return of_x, of_gate, of_weights, None, None, None


class Gated(torch.autograd.Function):
    """silu(gate) * value."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, value: Tensor) -> Tensor:
        gate, value = gate.contiguous(), value.contiguous()
        ctx.save_for_backward(gate, value)
        out = torch.empty_like(value)
        with launching_on(value):
            _kernels().gate[_parts(value)](gate, value, out, value.numel(), wide=WIDE)
        return out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, Tensor]:
        gate, value = ctx.saved_tensors
        of_gate, of_value = torch.empty_like(gate), torch.empty_like(value)
        with launching_on(value):
            _kernels().gate_back[_parts(value)](
                *(gate, value, gradients[0].contiguous(), of_gate, of_value, value.numel()),
                wide=WIDE,
            )
        return of_gate, of_value


class Rotation(torch.autograd.Function):
    """Rotary positions of `[row, head, token, channel]`, by angles `[row or 1, token, channel]`.

    There may be fewer angles than channels: the last channels are not rotated then. The result lies
    in memory as `[row, token, head, channel]`.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        ctx.save_for_backward(cosines, sines)
        return _rotated(x, cosines, sines, is_back=False)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, None, None]:
        return _rotated(gradients[0], *ctx.saved_tensors, is_back=True), None, None


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor, *, is_back: bool) -> Tensor:
    x = x if x.stride(-1) == 1 else x.contiguous()
    rows, heads, tokens, channels = x.shape
    half = cosines.shape[-1] // 2
    rest = channels - 2 * half
    cosines, sines = cosines.contiguous(), sines.contiguous()
    out = x.new_empty(rows, tokens, heads, channels)
    with launching_on(x):
        _kernels().rotate[(rows * tokens,)](
            *(x, cosines, sines, out, tokens, heads, *x.stride()[:3]),
            *(cosines.stride(0) if len(cosines) > 1 else 0, cosines.stride(1)),
            half=half,
            rest=rest,
            is_back=is_back,
            many=power_of_two(heads),
            wide=power_of_two(half),
            wide_rest=power_of_two(max(rest, 1)),
        )
    return out.transpose(1, 2)


def _rows(x: Tensor) -> Tensor:
    """Return the rows of a tensor, whose elements lie side by side."""
    found = x.reshape(-1, x.shape[-1])
    return found if found.stride(-1) == 1 else found.contiguous()


def _shape(rows: Tensor, gate: Tensor | None) -> dict[str, Any]:
    wide = power_of_two(rows.shape[-1])
    return {
        "width": rows.shape[-1],
        "wide": wide,
        "tile": max(1, WIDE // wide),
        "is_gated": gate is not None,
        "num_warps": 8 if wide > WIDE else 4,
    }


def _parts(x: Tensor) -> tuple[int]:
    return (-(-x.numel() // WIDE),)


@functools.cache
def _kernels() -> Any:
    return importlib.import_module("bas_opd.model.triton_pointwise")
