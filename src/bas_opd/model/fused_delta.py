"""The gated delta rule in chunks as Triton kernels: three forward, four backward."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable

from bas_opd.compute.compiling import has_triton, launching_on

CHUNK = 64
"""Tokens that are computed together."""
EPSILON = 1e-6
"""Of the norm of queries and keys, as in the reference."""
ROWS = 32
"""Rows of a product: tokens, or columns of the values in the kernels that carry states."""
PRECISION = "tf32x3"
"""Of products of fp32: about fp32 by three products in tf32. `tf32` is one, `ieee` exact and slow.

A product with bf16 inputs is exact in any case: the other factor is split into three bf16 numbers.
"""
WARPS = {
    "solve": 2,
    "scan": 4,
    "read": 4,
    "read_back": 4,
    "scan_back": 8,
    "write_back": 8,
    "sum_back": 1,
}
"""Of each kernel's programs, so that few registers spill."""


def fused_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = CHUNK,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute what `delta.chunked_delta_rule` does, where `can_fuse`."""
    if chunk_size not in (16, ROWS, 2 * ROWS):
        raise ValueError(f"chunk_size is {chunk_size}; the kernels have 16, 32 or 64")
    state = None if initial_state is None else initial_state.float().contiguous()
    given = (x.contiguous() for x in (query, key, value, g, beta))
    out, last = _Rule.apply(*given, state, chunk_size, use_qk_l2norm_in_kernel)
    return out, last if output_final_state else None


def can_fuse(query: Tensor, value: Tensor) -> bool:
    """Whether the kernels fit, and there is a GPU with Triton."""
    return query.is_cuda and fits(query, value) and has_triton()


def fits(query: Tensor, value: Tensor) -> bool:
    """Whether the kernels fit: widths that tiles divide, at most fp32."""
    widths = (query.shape[-1], value.shape[-1])
    is_even = all(width >= 16 and width & (width - 1) == 0 for width in widths)
    return is_even and query.dtype is not torch.float64


class _Rule(torch.autograd.Function):
    """Saves the inputs and, of each chunk, its factors, T, U and the state before it."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        initial: Tensor | None,
        chunk: int,
        normalises: bool,
    ) -> tuple[Tensor, Tensor]:
        call = _Call(query, value, chunk, normalises)
        factors, inverse = call.new(3, chunk), call.new(chunk, chunk)
        states, corrections = call.new(call.wide, call.width), call.new(chunk, call.wide)
        final = call.new_states()
        out = torch.empty_like(value, dtype=query.dtype)
        call.run("solve", call.by_chunk, query, key, g, beta, factors, inverse)
        starts = initial is not None
        given = (key, value, beta, factors, inverse, initial if starts else final)
        call.run("scan", call.by_columns, *given, states, corrections, final, starts=starts)
        # Twice the columns leave no warp without columns of its own.
        tile = min(2 * ROWS, call.wide)
        call.run("read", call.by_rows, query, key, factors, states, corrections, out, tile=tile)
        ctx.save_for_backward(query, key, value, g, beta, factors, inverse, states, corrections)
        ctx.set_materialize_grads(False)
        ctx.settings = chunk, normalises, starts
        return out, final

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        query, key, value, g, beta, factors, inverse, states, corrections = ctx.saved_tensors
        chunk, normalises, starts = ctx.settings
        of_out, of_final = (None if x is None else x.contiguous() for x in gradients)
        if of_out is None:
            of_out = torch.zeros_like(value, dtype=query.dtype)
        call = _Call(query, value, chunk, normalises)
        of_q, of_k, of_v, of_g, of_b = (torch.empty_like(x) for x in (query, key, value, g, beta))
        of_initial, of_c, of_last = call.new_states(), call.new(chunk), call.new(chunk // call.rows)
        local, solved, flows = (torch.empty_like(x) for x in (corrections, corrections, states))
        kept = (states, corrections, of_out)
        call.run("read_back", call.by_rows, query, key, factors, *kept, of_q, of_c, local)
        ends = of_final is not None
        given = (
            query,
            key,
            beta,
            factors,
            inverse,
            of_out,
            local,
            of_final if ends else of_initial,
        )
        call.run("scan_back", call.by_columns, *given, flows, solved, of_initial, ends=ends)
        given = (query, key, value, beta, factors, *kept, flows, solved)
        call.run("write_back", call.by_rows, *given, of_k, of_v, of_b, of_c, of_last)
        call.run("sum_back", call.by_chunk, of_c, of_last, of_g)
        return of_q, of_k, of_v, of_g, of_b, of_initial if starts else None, None, None


class _Call:
    """The sizes of a call of the rule, and how its kernels are launched."""

    def __init__(self, query: Tensor, value: Tensor, chunk: int, normalises: bool) -> None:
        self.like = query
        batch, self.length, self.heads, self.width = query.shape
        self.wide = value.shape[-1]
        self.rows = min(ROWS, chunk)
        tile = min(ROWS, self.wide)
        self.by_chunk = batch * self.heads, -(-self.length // chunk)
        self.by_rows = *self.by_chunk, chunk // self.rows
        self.by_columns = batch * self.heads, self.wide // tile
        self.constants = {
            "scale": self.width**-0.5,
            "epsilon": EPSILON,
            "heads": self.heads,
            "width": self.width,
            "wide": self.wide,
            "chunk": chunk,
            "rows": self.rows,
            "tile": tile,
            "normalises": normalises,
            "precision": PRECISION,
        }

    def new(self, *shape: int) -> Tensor:
        """Return an fp32 tensor with this shape for each chunk of each head."""
        return self.like.new_empty(*self.by_chunk, *shape, dtype=torch.float32)

    def new_states(self) -> Tensor:
        """Return a state for each row and head."""
        shape = (len(self.like), self.heads, self.width, self.wide)
        return self.like.new_empty(shape, dtype=torch.float32)

    def run(self, name: str, grid: tuple[int, ...], *tensors: Tensor | None, **more: int) -> None:
        """Launch a kernel, with those of the constants that it takes."""
        if isinstance(self.like, FakeTensor):  # Memory is counted, and nothing computed.
            return
        kernel = getattr(importlib.import_module("bas_opd.model.triton_chunks"), name)
        constants = {**self.constants, **more}
        taken = {key: x for key, x in constants.items() if key in kernel.arg_names}
        launch = {"num_warps": WARPS[name], "num_stages": 1}
        with launching_on(self.like):
            kernel[grid](*tensors, self.length, self.by_chunk[1], **taken, **launch)
