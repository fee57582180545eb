"""The kernels behind `pointwise`. They need Triton, which comes with PyTorch's CUDA build."""

# pyright: reportMissingImports=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def norm(
    inputs,
    gates,
    weight,
    out,
    scales,
    rows,
    from_row,
    gate_from_row,
    above,
    epsilon,
    width: tl.constexpr,
    wide: tl.constexpr,
    tile: tl.constexpr,
    is_gated: tl.constexpr,
):
    """Write `tile` rows over their root mean square, times weights and silu(gates)."""
    row = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    unit = tl.arange(0, wide)
    inside = (row < rows)[:, None] & (unit < width)[None, :]
    x = tl.load(inputs + row[:, None] * from_row + unit[None, :], mask=inside, other=0.0)
    x = x.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / width + epsilon)
    factor = tl.load(weight + unit, mask=unit < width, other=0.0).to(tl.float32) + above
    y = x * scale[:, None] * factor[None, :]
    if is_gated:
        at = row[:, None] * gate_from_row + unit[None, :]
        gate = tl.load(gates + at, mask=inside, other=0.0).to(tl.float32)
        y *= gate * tl.sigmoid(gate)
    tl.store(scales + row, scale, mask=row < rows)
    tl.store(out + row[:, None] * width + unit[None, :], y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def norm_back(
    inputs,
    gates,
    weight,
    scales,
    of_out,
    of_inputs,
    of_gates,
    of_weight,
    rows,
    from_row,
    gate_from_row,
    above,
    width: tl.constexpr,
    wide: tl.constexpr,
    tile: tl.constexpr,
    is_gated: tl.constexpr,
    learns: tl.constexpr,
):
    """Write the gradients of every n-th tile of rows, and their part of the weights' gradient."""
    unit = tl.arange(0, wide)
    factor = tl.load(weight + unit, mask=unit < width, other=0.0).to(tl.float32) + above
    added = tl.zeros([wide], dtype=tl.float32)
    for first in range(tl.program_id(0) * tile, rows, tl.num_programs(0) * tile):
        row = first + tl.arange(0, tile).to(tl.int64)
        inside = (row < rows)[:, None] & (unit < width)[None, :]
        here = row[:, None] * width + unit[None, :]
        x = tl.load(inputs + row[:, None] * from_row + unit[None, :], mask=inside, other=0.0)
        scale = tl.load(scales + row, mask=row < rows, other=0.0)
        given = tl.load(of_out + here, mask=inside, other=0.0).to(tl.float32)
        normed = x.to(tl.float32) * scale[:, None]
        if is_gated:
            at = row[:, None] * gate_from_row + unit[None, :]
            gate = tl.load(gates + at, mask=inside, other=0.0).to(tl.float32)
            part = tl.sigmoid(gate)
            of_gate = given * normed * factor[None, :] * part * (1.0 + gate * (1.0 - part))
            tl.store(of_gates + here, of_gate.to(of_gates.dtype.element_ty), mask=inside)
            given *= gate * part
        if learns:
            added += tl.sum(given * normed, axis=0)
        given *= factor[None, :]
        mean = tl.sum(given * normed, axis=1) / width
        of_x = scale[:, None] * (given - normed * mean[:, None])
        tl.store(of_inputs + here, of_x.to(of_inputs.dtype.element_ty), mask=inside)
    if learns:
        place = tl.program_id(0).to(tl.int64) * width + unit
        tl.store(of_weight + place, added, mask=unit < width)


@triton.jit
def gate(gates, values, out, count, wide: tl.constexpr):
    """Write silu(gates) times values."""
    place = tl.program_id(0).to(tl.int64) * wide + tl.arange(0, wide)
    inside = place < count
    x = tl.load(gates + place, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(values + place, mask=inside, other=0.0).to(tl.float32)
    y = x * tl.sigmoid(x) * value
    tl.store(out + place, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def gate_back(gates, values, of_out, of_gates, of_values, count, wide: tl.constexpr):
    """Write the gradients of gates and values."""
    place = tl.program_id(0).to(tl.int64) * wide + tl.arange(0, wide)
    inside = place < count
    x = tl.load(gates + place, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(values + place, mask=inside, other=0.0).to(tl.float32)
    given = tl.load(of_out + place, mask=inside, other=0.0).to(tl.float32)
    part = tl.sigmoid(x)
    of_x = given * value * part * (1.0 + x * (1.0 - part))
    of_value = given * x * part
    tl.store(of_gates + place, of_x.to(of_gates.dtype.element_ty), mask=inside)
    tl.store(of_values + place, of_value.to(of_values.dtype.element_ty), mask=inside)


@triton.jit
def rotate(
    inputs,
    cosines,
    sines,
    out,
    tokens,
    heads,
    from_row,
    from_head,
    from_token,
    angle_from_row,
    angle_from_token,
    half: tl.constexpr,
    rest: tl.constexpr,
    is_back: tl.constexpr,
    many: tl.constexpr,
    wide: tl.constexpr,
    wide_rest: tl.constexpr,
):
    """Rotate the first 2 * half channels of all heads of a token, or back; copy the others."""
    token = (tl.program_id(0) % tokens).to(tl.int64)
    row = (tl.program_id(0) // tokens).to(tl.int64)
    head = tl.arange(0, many)
    unit = tl.arange(0, wide)
    inside = (head < heads)[:, None] & (unit < half)[None, :]
    angle = row * angle_from_row + token * angle_from_token + unit
    is_angle = unit < half
    cos = tl.load(cosines + angle, mask=is_angle, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sines + angle, mask=is_angle, other=0.0).to(tl.float32)[None, :]
    later_cos = tl.load(cosines + angle + half, mask=is_angle, other=0.0).to(tl.float32)[None, :]
    later_sin = tl.load(sines + angle + half, mask=is_angle, other=0.0).to(tl.float32)[None, :]
    source = inputs + row * from_row + token * from_token + head[:, None] * from_head
    channels: tl.constexpr = 2 * half + rest
    place = out + (tl.program_id(0).to(tl.int64) * heads + head[:, None]) * channels
    first = tl.load(source + unit[None, :], mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + half + unit[None, :], mask=inside, other=0.0).to(tl.float32)
    if is_back:
        low, high = first * cos + second * later_sin, second * later_cos - first * sin
    else:
        low, high = first * cos - second * sin, second * later_cos + first * later_sin
    tl.store(place + unit[None, :], low.to(out.dtype.element_ty), mask=inside)
    tl.store(place + half + unit[None, :], high.to(out.dtype.element_ty), mask=inside)
    if rest > 0:
        unit = 2 * half + tl.arange(0, wide_rest)
        inside = (head < heads)[:, None] & (unit < channels)[None, :]
        kept = tl.load(source + unit[None, :], mask=inside, other=0.0)
        tl.store(place + unit[None, :], kept, mask=inside)
