"""The kernel behind `delta_step`. Needs Triton, which comes with the CUDA build of PyTorch."""

# pyright: reportMissingImports=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def decode(
    mixed,
    strengths,
    decays,
    amplitudes,
    biases,
    states,
    out,
    from_row,
    strength_from_row,
    decay_from_row,
    scale,
    epsilon,
    heads: tl.constexpr,
    shared: tl.constexpr,
    width: tl.constexpr,
    wide: tl.constexpr,
    tile: tl.constexpr,
):
    """Move the state of a head by one token, in its place, and read it: `tile` values of it.

    A row of `mixed` has the queries of all heads, then the keys and the values; `shared` heads of
    values have one of queries and keys.
    """
    number = tl.program_id(0).to(tl.int64)
    row, head = number // heads, number % heads
    place = tl.arange(0, width)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    keys: tl.constexpr = heads // shared * width
    mixed += row * from_row
    own = mixed + head // shared * width + place
    q = tl.load(own).to(tl.float32)
    k = tl.load(own + keys).to(tl.float32)
    v = tl.load(mixed + 2 * keys + head * wide + column).to(tl.float32)
    q *= scale / tl.sqrt(tl.sum(q * q, axis=0) + epsilon)
    k *= 1.0 / tl.sqrt(tl.sum(k * k, axis=0) + epsilon)
    decay = tl.load(decays + row * decay_from_row + head).to(tl.float32)
    decay = _softplus(decay + tl.load(biases + head).to(tl.float32))
    decay = tl.exp(-tl.exp(tl.load(amplitudes + head).to(tl.float32)) * decay)
    strength = tl.load(strengths + row * strength_from_row + head)
    # Rounded as where many tokens are computed together.
    strength = tl.sigmoid(strength.to(tl.float32)).to(strength.dtype).to(tl.float32)
    at = states + number * width * wide + place[:, None] * wide + column[None, :]
    state = tl.load(at) * decay
    error = v - tl.sum(state * k[:, None], axis=0)
    state += k[:, None] * (error * strength)[None, :]
    tl.store(at, state)
    read = tl.sum(state * q[:, None], axis=0)
    tl.store(out + number * wide + column, read.to(out.dtype.element_ty))


@triton.jit
def _softplus(x):
    """Return log(1 + exp(x)) with all digits that fp32 has; above 20 it is x."""
    power = tl.exp(tl.minimum(x, 20.0))
    above = 1.0 + power
    rounded = above - 1.0
    # log1p(power) is log(above) * power / (above - 1), whatever rounding took from above.
    known = tl.log(above) * (power / tl.where(rounded == 0.0, 1.0, rounded))
    return tl.where(x > 20.0, x, tl.where(rounded == 0.0, power, known))
