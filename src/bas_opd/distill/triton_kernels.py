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
