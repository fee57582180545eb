"""The gated delta rule in chunks, forward and backward, as seven Triton kernels."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

EPSILON = 1e-6
"""Of the norm of queries and keys, as in the reference."""
ROWS = 32
"""Tokens, or columns of values, that are the rows of a product (see `triton_chunks`)."""
PRECISION = "tf32x3"
"""Of products: about that of fp32 by three of tf32. `tf32` is faster and `ieee` slow and exact."""


def fused_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = 64,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute what `delta.chunked_delta_rule` does, where `can_fuse`."""
    state = None if initial_state is None else initial_state.float().contiguous()
    given = (x.contiguous() for x in (query, key, value, g, beta))
    out, last = _Rule.apply(*given, state, chunk_size, use_qk_l2norm_in_kernel)
    return out, last if output_final_state else None


def can_fuse(query: Tensor, value: Tensor, chunk_size: int) -> bool:
    """Whether the kernels fit: whole tiles, and no more precision asked for than fp32."""
    widths = (query.shape[-1], value.shape[-1])
    return (
        all(width >= 16 and width & (width - 1) == 0 for width in widths)
        and chunk_size in (16, ROWS, 2 * ROWS)
        and query.dtype is not torch.float64
    )


class _Rule(torch.autograd.Function):
    """Saves the inputs and, of each chunk, c, T, U and the state before it."""

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
        kernels: Any = importlib.import_module("bas_opd.model.triton_chunks")
        on = _Launch(query, value, chunk)
        factors, inverse = on.new(3, chunk), on.new(chunk, chunk)
        states, corrections = on.new(on.wide, on.width), on.new(chunk, on.wide)
        final = query.new_empty(len(query), on.heads, on.width, on.wide, dtype=torch.float32)
        out = torch.empty_like(value, dtype=query.dtype)
        with on.device:
            kernels.solve[on.by_chunk](
                query,
                key,
                g,
                beta,
                factors,
                inverse,
                *on.lengths,
                on.width**-0.5,
                EPSILON,
                rows=on.rows,
                normalises=normalises,
                **on.options,
            )
            kernels.scan[on.by_column](
                key,
                value,
                beta,
                factors,
                inverse,
                final if initial is None else initial,  # Unused if it does not start.
                states,
                corrections,
                final,
                *on.lengths,
                starts=initial is not None,
                **on.tiles,
            )
            kernels.read[on.by_rows](
                query,
                key,
                factors,
                states,
                corrections,
                out,
                *on.lengths,
                rows=on.rows,
                **on.tiles,
            )
        ctx.save_for_backward(query, key, value, g, beta, factors, inverse, states, corrections)
        ctx.set_materialize_grads(False)
        ctx.settings = chunk, normalises
        ctx.starts = initial is not None
        return out, final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        kernels: Any = importlib.import_module("bas_opd.model.triton_chunks")
        query, key, value, g, beta, factors, inverse, states, corrections = ctx.saved_tensors
        chunk, normalises = ctx.settings
        of_out, of_final = gradients
        of_out = torch.zeros_like(value) if of_out is None else of_out.contiguous()
        on = _Launch(query, value, chunk)
        local, solved, flows = (torch.empty_like(x) for x in (corrections, corrections, states))
        of_initial = states.new_empty(len(query), on.heads, on.width, on.wide)
        of_c, of_last = on.new(chunk), on.new(on.by_rows[2])
        found = [torch.empty_like(x) for x in (query, key, value, beta, g)]
        with on.device:
            kernels.read_back[on.by_rows](
                query,
                key,
                factors,
                of_out,
                local,
                *on.lengths,
                rows=on.rows,
                **on.tiles,
            )
            kernels.scan_back[on.by_column](
                query,
                key,
                beta,
                factors,
                inverse,
                of_out,
                local,
                of_initial if of_final is None else of_final.contiguous(),
                flows,
                solved,
                of_initial,
                *on.lengths,
                ends=of_final is not None,
                **on.tiles,
            )
            kernels.combine_back[on.by_rows](
                query,
                key,
                value,
                beta,
                factors,
                states,
                corrections,
                of_out,
                flows,
                solved,
                *found[:4],
                of_c,
                of_last,
                *on.lengths,
                rows=on.rows,
                normalises=normalises,
                **on.tiles,
            )
            kernels.sum_back[on.by_chunk](
                of_c,
                of_last,
                found[4],
                *on.lengths,
                heads=on.heads,
                chunk=chunk,
                programs=on.by_rows[2],
            )
        of_query, of_key, of_value, of_beta, of_g = found
        start = of_initial if ctx.starts else None
        return of_query, of_key, of_value, of_g, of_beta, start, None, None


class _Launch:
    """The sizes of a call: grids of programs and arguments that several kernels take."""

    def __init__(self, query: Tensor, value: Tensor, chunk: int) -> None:
        batch, length, self.heads, self.width = query.shape
        self.wide = value.shape[-1]
        self.rows = min(ROWS, chunk)
        self.like = query
        chunks = -(-length // chunk)
        tile = min(ROWS, self.wide)
        self.lengths = length, chunks
        self.by_chunk = batch * self.heads, chunks
        self.by_rows = *self.by_chunk, chunk // self.rows
        self.by_column = batch * self.heads, self.wide // tile
        self.options = {
            "heads": self.heads,
            "width": self.width,
            "chunk": chunk,
            "precision": PRECISION,
            "num_warps": 4,
            "num_stages": 1,
        }
        self.tiles = {**self.options, "wide": self.wide, "tile": tile}

    @property
    def device(self) -> AbstractContextManager[Any]:
        """Triton launches on the current GPU, so make it that of the inputs."""
        return torch.cuda.device(self.like.device) if self.like.is_cuda else nullcontext()

    def new(self, *shape: int) -> Tensor:
        """Return an fp32 tensor with this shape for each chunk of each head."""
        return self.like.new_empty(*self.by_chunk, *shape, dtype=torch.float32)
