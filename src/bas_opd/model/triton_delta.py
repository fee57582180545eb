"""The kernel behind `delta`. Needs Triton, which comes with the CUDA build of PyTorch."""

# pyright: reportMissingImports=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def decode(
    query,
    key,
    value,
    log_decay,
    strength,
    states,
    out,
    scale,
    epsilon,
    width: tl.constexpr,
    wide: tl.constexpr,
    tile: tl.constexpr,
):
    """Move the state of a head by one token, in its place, and read it: `tile` values of it."""
    head = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, width)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    q = tl.load(query + head * width + place).to(tl.float32)
    k = tl.load(key + head * width + place).to(tl.float32)
    q *= scale / tl.sqrt(tl.sum(q * q, axis=0) + epsilon)
    k *= 1.0 / tl.sqrt(tl.sum(k * k, axis=0) + epsilon)
    at = states + head * width * wide + place[:, None] * wide + column[None, :]
    state = tl.load(at) * tl.exp(tl.load(log_decay + head).to(tl.float32))
    v = tl.load(value + head * wide + column).to(tl.float32)
    error = v - tl.sum(state * k[:, None], axis=0)
    state += k[:, None] * (error * tl.load(strength + head).to(tl.float32))[None, :]
    tl.store(at, state)
    read = tl.sum(state * q[:, None], axis=0)
    tl.store(out + head * wide + column, read.to(out.dtype.element_ty))
