"""The kernels behind `attention`. They need Triton, which comes with PyTorch's CUDA build."""

# pyright: reportMissingImports=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def attend(
    query,
    key,
    value,
    seen,
    out,
    tops,
    masses,
    slots,
    heads,
    key_from_row,
    key_from_head,
    key_from_slot,
    value_from_row,
    value_from_head,
    value_from_slot,
    seen_from_row,
    scale,
    group: tl.constexpr,
    many: tl.constexpr,
    width: tl.constexpr,
    tile: tl.constexpr,
    all_slots: tl.constexpr,
    parts: tl.constexpr,
):
    """Let the `group` queries of a row that share a key head attend to the slots that it sees.

    With several parts a program has its part of the slots. It writes the sum of values in fp32,
    not yet divided by the mass of their weights, which are relative to the largest score.
    """
    row = (tl.program_id(0) // heads).to(tl.int64)
    head = (tl.program_id(0) % heads).to(tl.int64)
    number = tl.program_id(0).to(tl.int64)
    unit = tl.arange(0, width)
    place = tl.arange(0, many)
    is_query = place < group
    at = (number * group + place[:, None]) * width + unit[None, :]
    q = tl.load(query + at, mask=is_query[:, None], other=0.0)
    seen += row * seen_from_row
    every = tl.arange(0, all_slots)
    shown = tl.load(seen + every, mask=every < slots, other=0) != 0
    end = tl.max(tl.where(shown, every + 1, 0), axis=0)
    begin = 0
    if parts > 1:
        each = tl.cdiv(end, parts * tile) * tile
        begin = tl.program_id(1) * each
        end = tl.minimum(end, begin + each)
    key += row * key_from_row + head * key_from_head
    value += row * value_from_row + head * value_from_head
    top = tl.full([many], float("-inf"), tl.float32)
    mass = tl.zeros([many], tl.float32)
    total = tl.zeros([many, width], tl.float32)
    for first in range(begin, end, tile):
        slot = first + tl.arange(0, tile)
        inside = (slot < slots)[:, None]
        is_seen = tl.load(seen + slot, mask=slot < slots, other=0) != 0
        k = tl.load(key + slot[:, None] * key_from_slot + unit[None, :], mask=inside, other=0.0)
        v = tl.load(value + slot[:, None] * value_from_slot + unit[None, :], mask=inside, other=0.0)
        scores = tl.where(is_seen[None, :], tl.dot(q, tl.trans(k)) * scale, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, axis=1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp(scores - base[:, None])
        fade = tl.exp(top - base)
        mass = mass * fade + tl.sum(weights, axis=1)
        total = total * fade[:, None] + tl.dot(weights.to(v.dtype), v)
        top = higher
    if parts > 1:
        at_query = (number * parts + tl.program_id(1)) * group + place
        tl.store(tops + at_query, top, mask=is_query)
        tl.store(masses + at_query, mass, mask=is_query)
        at = at_query[:, None] * width + unit[None, :]
    else:
        total /= mass[:, None]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=is_query[:, None])


@triton.jit
def join_parts(
    totals,
    tops,
    masses,
    out,
    group: tl.constexpr,
    width: tl.constexpr,
    parts: tl.constexpr,
):
    """Write what one query sees in all parts of the slots; some part has a slot that it sees."""
    number = tl.program_id(0).to(tl.int64)
    at = (number // group * parts + tl.arange(0, parts)) * group + number % group
    unit = tl.arange(0, width)
    top = tl.load(tops + at)
    weight = tl.exp(top - tl.max(top, axis=0))
    mass = tl.sum(weight * tl.load(masses + at), axis=0)
    total = tl.load(totals + at[:, None] * width + unit[None, :])
    joined = tl.sum(total * weight[:, None], axis=0) / mass
    tl.store(out + number * width + unit, joined.to(out.dtype.element_ty))
