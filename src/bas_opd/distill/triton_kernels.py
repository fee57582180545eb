"""The kernels behind `kernels`. Needs Triton, which comes with the CUDA build of PyTorch."""

# pyright: reportMissingImports=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def summarise(
    logits,
    largest,
    summed,
    stride,
    vocabulary,
    blocks,
    tile: tl.constexpr,
    width: tl.constexpr,
):
    """Write the maximum and the log-sum-exp of `tile` blocks of a token."""
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * tile + tl.arange(0, tile)
    column = block[:, None] * width + tl.arange(0, width)[None, :]
    inside = column < vocabulary
    values = tl.load(logits + token * stride + column, mask=inside, other=float("-inf"))
    top = tl.max(values, axis=1)
    # A block that is -inf throughout has a sum of 0, not NaN.
    shift = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp(values - shift[:, None]), axis=1)
    # The largest of logits of which one is not a number is that one: its block must be looked at.
    top = tl.where(total == total, top, total)
    place = token * blocks + block
    tl.store(largest + place, top, mask=block < blocks)
    tl.store(summed + place, shift + tl.log(total), mask=block < blocks)


@triton.jit
def scale_softmax(logits, normaliser, scale, out, stride, vocabulary, width: tl.constexpr):
    """Write scale * exp(logit - normaliser) for `width` logits of a token."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * width + tl.arange(0, width)
    inside = column < vocabulary
    values = tl.load(logits + token * stride + column, mask=inside, other=float("-inf"))
    result = tl.load(scale + token) * tl.exp(values - tl.load(normaliser + token))
    tl.store(out + token * vocabulary + column, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _order(values):
    """Return integers in the order of the values, the largest for what is not a number."""
    bits = values.to(tl.int32, bitcast=True)
    return tl.where(values == values, bits ^ ((bits >> 31) & 0x7FFFFFFF), 0x7FFFFFFF)


@triton.jit
def _chosen(keys, k):
    """Return which keys are the k largest, the first ones of equal keys, and the place of each.

    The k-th largest is the largest number that k keys reach. It is found bit by bit.
    """
    reached = tl.sum((keys >= 0).to(tl.int32), axis=0)
    least = tl.where(reached >= k, 0, -2147483648)
    for step in range(31):
        higher = least + (1 << (30 - step))
        reached = tl.sum((keys >= higher).to(tl.int32), axis=0)
        least = tl.where(reached >= k, higher, least)
    above, equal = keys > least, keys == least
    left = k - tl.sum(above.to(tl.int32), axis=0)
    chosen = above | (equal & (tl.cumsum(equal.to(tl.int32), axis=0) <= left))
    return chosen, tl.cumsum(chosen.to(tl.int32), axis=0) - 1


@triton.jit
def choose_blocks(largest, chosen_blocks, blocks, k, many: tl.constexpr):
    """Write which k blocks of a token have the largest maxima."""
    token = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, many)
    values = tl.load(largest + token * blocks + block, mask=block < blocks, other=0.0)
    chosen, place = _chosen(tl.where(block < blocks, _order(values), -2147483648), k)
    tl.store(chosen_blocks + token * k + place, block, mask=chosen)


@triton.jit
def choose_tokens(
    logits,
    chosen_blocks,
    top,
    index,
    stride,
    vocabulary,
    k,
    slots: tl.constexpr,
    width: tl.constexpr,
):
    """Write values and ids of the k largest logits in k blocks of a token."""
    token = tl.program_id(0).to(tl.int64)
    each = tl.arange(0, slots * width)
    slot = each // width
    block = tl.load(chosen_blocks + token * k + slot, mask=slot < k, other=0)
    column = block * width + each % width
    inside = (slot < k) & (column < vocabulary)
    values = tl.load(logits + token * stride + column, mask=inside, other=0.0)
    chosen, place = _chosen(tl.where(inside, _order(values), -2147483648), k)
    tl.store(top + token * k + place, values, mask=chosen)
    tl.store(index + token * k + place, column.to(tl.int64), mask=chosen)


@triton.jit
def sum_rest(
    logits,
    untouched,
    index,
    rest,
    stride,
    vocabulary,
    blocks,
    k,
    many: tl.constexpr,
    slots: tl.constexpr,
    width: tl.constexpr,
):
    """Write the log-sum-exp of untouched blocks and of the logits in blocks that have an id."""
    token = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, many)
    sums = tl.load(untouched + token * blocks + block, mask=block < blocks, other=float("-inf"))

    each = tl.arange(0, slots * width)
    slot = each // width
    here = tl.load(index + token * k + slot, mask=slot < k, other=0) // width
    # Ids ascend, so those of one block are neighbours. It is read for the first of them.
    has_one_before = (slot > 0) & (slot < k)
    before = tl.load(index + token * k + slot - 1, mask=has_one_before, other=-width) // width
    column = here * width + each % width
    inside = (slot < k) & (here != before) & (column < vocabulary)
    values = tl.load(logits + token * stride + column, mask=inside, other=float("-inf"))

    top = tl.maximum(tl.max(sums, axis=0), tl.max(values, axis=0))
    shift = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp(sums - shift), axis=0) + tl.sum(tl.exp(values - shift), axis=0)
    tl.store(rest + token, shift + tl.log(total))
