"""The kernels behind `convolution`. They need Triton, which comes with PyTorch's CUDA build."""

# pyright: reportMissingImports=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _filtered(inputs, token, tokens, channel, inside, across, along, taps, width: tl.constexpr):
    """Return the filter's output before its activation, `[token, channel]`, in fp32."""
    total = tl.zeros([token.shape[0], channel.shape[0]], dtype=tl.float32)
    for tap in tl.static_range(width):
        at = token + (tap - width + 1)
        values = tl.load(
            inputs + at[:, None] * along + channel[None, :] * across,
            mask=((at >= 0) & (at < tokens))[:, None] & inside[None, :],
            other=0.0,
        )
        weight = tl.load(taps + channel * width + tap, mask=inside, other=0.0)
        total += values.to(tl.float32) * weight.to(tl.float32)[None, :]
    return total


@triton.jit
def forward(
    inputs,
    taps,
    out,
    tokens,
    channels,
    from_row,
    across,
    along,
    width: tl.constexpr,
    tile: tl.constexpr,
    wide: tl.constexpr,
):
    """Write silu(filtered inputs) of `tile` tokens and `wide` channels of a row."""
    row = tl.program_id(2).to(tl.int64)
    token = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    channel = tl.program_id(1).to(tl.int64) * wide + tl.arange(0, wide)
    inside = channel < channels
    values = _filtered(
        inputs + row * from_row, token, tokens, channel, inside, across, along, taps, width
    )
    values *= tl.sigmoid(values)
    place = (row * tokens + token[:, None]) * channels + channel[None, :]
    is_valid = (token < tokens)[:, None] & inside[None, :]
    tl.store(out + place, values.to(out.dtype.element_ty), mask=is_valid)


@triton.jit
def backward(
    inputs,
    taps,
    of_out,
    of_inputs,
    of_taps,
    tokens,
    channels,
    from_row,
    across,
    along,
    out_row,
    out_across,
    out_along,
    width: tl.constexpr,
    span: tl.constexpr,
    tile: tl.constexpr,
    wide: tl.constexpr,
):
    """Write the gradient of the inputs of `span` tokens, and what these add to that of the taps.

    An input reaches `width` outputs, whose values before the activation are computed again.
    """
    row = tl.program_id(2).to(tl.int64)
    part = row * tl.num_programs(0) + tl.program_id(0)
    channel = tl.program_id(1).to(tl.int64) * wide + tl.arange(0, wide)
    inside = channel < channels
    given = inputs + row * from_row
    tap = tl.arange(0, width)
    of_tap = tl.zeros([width, wide], dtype=tl.float32)
    for start in range(0, span, tile):
        token = tl.program_id(0).to(tl.int64) * span + start + tl.arange(0, tile)
        total = tl.zeros([tile, wide], dtype=tl.float32)
        for later in tl.static_range(width):
            at = token + later
            values = _filtered(given, at, tokens, channel, inside, across, along, taps, width)
            gate = tl.sigmoid(values)
            reaching = tl.load(
                of_out + row * out_row + at[:, None] * out_along + channel[None, :] * out_across,
                mask=(at < tokens)[:, None] & inside[None, :],
                other=0.0,
            ).to(tl.float32)
            reaching *= gate * (1.0 + values * (1.0 - gate))
            weight = tl.load(taps + channel * width + (width - 1 - later), mask=inside, other=0.0)
            total += reaching * weight.to(tl.float32)[None, :]
            if later == 0:  # Every output is there once.
                for each in tl.static_range(width):
                    source = token + (each - width + 1)
                    seen = tl.load(
                        given + source[:, None] * along + channel[None, :] * across,
                        mask=((source >= 0) & (source < tokens))[:, None] & inside[None, :],
                        other=0.0,
                    )
                    added = tl.sum(reaching * seen.to(tl.float32), axis=0)
                    of_tap += tl.where(tap[:, None] == each, added[None, :], 0.0)
        place = (row * tokens + token[:, None]) * channels + channel[None, :]
        is_valid = (token < tokens)[:, None] & inside[None, :]
        tl.store(of_inputs + place, total.to(of_inputs.dtype.element_ty), mask=is_valid)
    place = (part * channels + channel[None, :]) * width + tap[:, None]
    tl.store(of_taps + place, of_tap, mask=inside[None, :])


@triton.jit
def step(
    inputs,
    states,
    taps,
    out,
    channels,
    from_row,
    across,
    width: tl.constexpr,
    kept: tl.constexpr,
    wide: tl.constexpr,
):
    """Append one token to the states `[row, channel, kept]`, in place, and write its output."""
    row = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(0).to(tl.int64) * wide + tl.arange(0, wide)
    place = tl.arange(0, kept)
    inside = channel < channels
    is_last = place[None, :] == kept - 1
    at = states + (row * channels + channel[:, None]) * kept + place[None, :]
    older = tl.load(at + 1, mask=inside[:, None] & ~is_last, other=0.0)
    newest = tl.load(inputs + row * from_row + channel * across, mask=inside, other=0.0)
    values = tl.where(is_last, newest[:, None].to(tl.float32), older.to(tl.float32))
    tap = place[None, :] - kept + width
    weight = tl.load(
        taps + channel[:, None] * width + tap, mask=inside[:, None] & (tap >= 0), other=0.0
    )
    total = tl.sum(values * weight.to(tl.float32), axis=1)
    # Several threads may hold a value: all have read before one writes.
    tl.debug_barrier()
    tl.store(at, values.to(states.dtype.element_ty), mask=inside[:, None])
    total *= tl.sigmoid(total)
    tl.store(out + row * channels + channel, total.to(out.dtype.element_ty), mask=inside)
