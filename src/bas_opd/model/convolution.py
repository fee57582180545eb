"""The short causal filters of Qwen3.5's linear attention on a GPU, with their activation.

Each channel is filtered over its last four tokens. transformers casts and copies the inputs for a
convolution and its results back, in eight operations for a token that is decoded. Here tokens are
read where they lie, sums are fp32, and either pass is one kernel.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bas_opd.compute.compiling import launching_on

SPAN, TILE, CHANNELS = 64, 8, 64
"""Tokens of a program of the backward pass, tokens that any program holds at a time, channels."""


class CausalFilter(torch.autograd.Function):
    """silu(causal convolution) of `[row, channel, token]` with taps `[channel, width]`."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, taps: Tensor) -> Tensor:
        taps = taps.contiguous()
        ctx.save_for_backward(inputs, taps)
        rows, channels, tokens = inputs.shape
        out = inputs.new_empty(rows, tokens, channels)
        with launching_on(inputs):
            _kernels().forward[_grid(inputs, TILE)](
                inputs,
                taps,
                out,
                tokens,
                channels,
                *inputs.stride(),
                width=taps.shape[1],
                tile=TILE,
                wide=CHANNELS,
            )
        return out.mT

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, Tensor]:
        inputs, taps = ctx.saved_tensors
        (of_out,) = gradients
        rows, channels, tokens = inputs.shape
        of_inputs = inputs.new_empty(rows, tokens, channels)
        parts = -(-tokens // SPAN)
        of_taps = taps.new_empty(rows * parts, *taps.shape, dtype=torch.float32)
        with launching_on(inputs):
            _kernels().backward[_grid(inputs, SPAN)](
                inputs,
                taps,
                of_out,
                of_inputs,
                of_taps,
                tokens,
                channels,
                *inputs.stride(),
                *of_out.stride(),
                width=taps.shape[1],
                span=SPAN,
                tile=TILE,
                wide=CHANNELS,
            )
        return of_inputs.mT, of_taps.sum(0).to(taps.dtype)


def filter_step(inputs: Tensor, states: Tensor, taps: Tensor) -> Tensor:
    """Return silu(filter) of one more token, `[row, channel, 1]`; the states are moved on."""
    rows, channels, _ = inputs.shape
    out = inputs.new_empty(rows, channels, 1)
    with launching_on(inputs):
        _kernels().step[(-(-channels // CHANNELS), rows)](
            inputs,
            states,
            taps.contiguous(),
            out,
            channels,
            *inputs.stride()[:2],
            width=taps.shape[1],
            kept=states.shape[2],
            wide=CHANNELS,
        )
    return out


def _grid(inputs: Tensor, size: int) -> tuple[int, int, int]:
    """Return a program for each row, channels, and this many tokens."""
    rows, channels, tokens = inputs.shape
    return -(-tokens // size), -(-channels // CHANNELS), rows


@functools.cache
def _kernels() -> Any:
    return importlib.import_module("bas_opd.model.triton_convolution")
