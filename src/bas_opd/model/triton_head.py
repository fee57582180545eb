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
    totals = tl.zeros([tile, wide], tl.float32)  # Added up once, not in each round.
    for first in range(0, k, tile):
        slot = first + tl.arange(0, tile)
        value = tl.load(values + token * k + slot, mask=slot < k, other=0.0).to(tl.float32)
        row = tl.load(ids + token * k + slot, mask=slot < k, other=0)
        inside = (slot < k)[:, None] & (unit < width)[None, :]
        rows = tl.load(weights + row[:, None] * width + unit[None, :], mask=inside, other=0.0)
        totals += value[:, None] * rows.to(tl.float32)
    total = tl.sum(totals, axis=0)
    tl.store(out + token * width + unit, total.to(out.dtype.element_ty), mask=unit < width)


@triton.jit
def add_to_weights(
    values, states, ids, tokens, ends, gradient, width, tile: tl.constexpr, wide: tl.constexpr
):
    """Add each value times the state of its token to the gradient at its id, for `wide` units.

    Ids ascend; `ends` are where others follow. The program of the first of equal ids does it for
    all of them, one after the other. Most have few, so the first needs no loop, and all that it
    reads is under way at once.
    """
    first = tl.program_id(0)
    row = tl.load(ids + first)
    before = tl.load(ids + first - 1, mask=first > 0, other=-1)
    end = tl.load(ends + first)
    token = tl.load(tokens + first)
    value = tl.load(values + first).to(tl.float32)
    if row != before:
        unit = tl.program_id(1) * wide + tl.arange(0, wide)
        inside = unit < width
        place = gradient + row.to(tl.int64) * width + unit
        state = tl.load(states + token.to(tl.int64) * width + unit, mask=inside, other=0.0)
        total = tl.load(place, mask=inside, other=0.0) + value * state.to(tl.float32)
        for start in range(first + 1, end, tile):
            for each in tl.static_range(tile):
                is_one = start + each < end
                token = tl.load(tokens + start + each, mask=is_one, other=0)
                value = tl.load(values + start + each, mask=is_one, other=0.0).to(tl.float32)
                given = states + token.to(tl.int64) * width + unit
                state = tl.load(given, mask=inside & is_one, other=0.0)
                total += value * state.to(tl.float32)
        tl.store(place, total, mask=inside)
