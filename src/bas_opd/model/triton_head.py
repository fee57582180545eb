"""The kernels behind `head`. They need Triton, which comes with PyTorch's CUDA build."""

# pyright: reportMissingImports=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def to_states(values, ids, weights, out, k, width, tile: tl.constexpr, wide: tl.constexpr):
    """Write the sum of a token's values times the weights at its ids, for `wide` units."""
    token = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * wide + tl.arange(0, wide)
    total = tl.zeros([wide], tl.float32)
    for first in range(0, k, tile):
        slot = first + tl.arange(0, tile)
        value = tl.load(values + token * k + slot, mask=slot < k, other=0.0).to(tl.float32)
        row = tl.load(ids + token * k + slot, mask=slot < k, other=0)
        inside = (slot < k)[:, None] & (unit < width)[None, :]
        rows = tl.load(weights + row[:, None] * width + unit[None, :], mask=inside, other=0.0)
        total += tl.sum(value[:, None] * rows.to(tl.float32), axis=0)
    tl.store(out + token * width + unit, total.to(out.dtype.element_ty), mask=unit < width)


@triton.jit
def add_to_weights(
    values,
    states,
    ordered,
    places,
    ends,
    gradient,
    k,
    width,
    tile: tl.constexpr,
    wide: tl.constexpr,
):
    """Add the values times the states of all tokens that have an id to the gradient at this id.

    Ids are in ascending order; `places` are those of their values, `ends` where others follow. The
    program of the first of equal ids does it for all of them.
    """
    first = tl.program_id(0)
    unit = tl.program_id(1) * wide + tl.arange(0, wide)
    row = tl.load(ordered + first)
    is_first = tl.load(ordered + first - 1, mask=first > 0, other=-1) != row
    inside = (unit < width) & is_first
    end = tl.where(is_first, tl.load(ends + first).to(tl.int32), first)
    total = tl.load(gradient + row * width + unit, mask=inside, other=0.0)
    for start in range(first, end, tile):
        entry = start + tl.arange(0, tile)
        place = tl.load(places + entry, mask=entry < end, other=0)
        value = tl.load(values + place, mask=entry < end, other=0.0).to(tl.float32)
        given = states + (place // k)[:, None] * width + unit[None, :]
        state = tl.load(given, mask=(entry < end)[:, None] & inside[None, :], other=0.0)
        total += tl.sum(value[:, None] * state.to(tl.float32), axis=0)
    tl.store(gradient + row * width + unit, total, mask=inside)
