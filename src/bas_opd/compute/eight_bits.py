"""Tensors in 8 bits an element: a level on a logarithmic scale, times the largest of its block.

A block is up to 256 neighbours within a row, so that rows can be dealt to processes and read apart.
Levels are spread evenly in the logarithm over five decades, with an exact 0: what matters of a
moment is its ratio to the other one, whatever its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 256
DECADES = 5
LEAST_ROW = 64
"""Elements of a row from which it is packed; a scale for each shorter one would cost too much."""


def is_packed(shape: Sequence[int]) -> bool:
    """Return whether a tensor of this shape is worth packing; it depends on its rows alone."""
    return len(shape) > 1 and prod(shape[1:]) >= LEAST_ROW


def packed_bytes(shape: Sequence[int]) -> int:
    """Return the bytes of a packed tensor: an element each, and an fp32 scale for each block."""
    return prod(shape) + 4 * prod(scale_shape(shape))


def moment_bytes(shape: Sequence[int]) -> int:
    """Return the bytes of a moment: packed, or in fp32 where that is not worth it."""
    return packed_bytes(shape) if is_packed(shape) else 4 * prod(shape)


def scale_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return rows and blocks of a row."""
    return shape[0], -(-prod(shape[1:]) // BLOCK)


def pack(values: Tensor, noise: Tensor, *, signed: bool) -> tuple[Tensor, Tensor]:
    """Return levels `[*shape]` in uint8 and scales `[row, block]` in fp32.

    A value goes to the level below or above it, to the nearer one more often, as the noise
    `[*shape]` in [0, 1) decides: on average it is kept. Rounded to the nearest, a moment that
    changes by less than half a level a step would never change. Without a sign, a value above 0
    never becomes 0: it may be divided by.
    """
    rows, blocks = scale_shape(values.shape)
    width = values[0].numel() if rows else 0
    spare = (0, blocks * BLOCK - width)
    flat = pad(values.reshape(rows, width), spare).view(rows, blocks, BLOCK)
    scales = flat.abs().amax(-1)
    shares = flat / scales.clamp_min(torch.finfo(torch.float32).tiny)[..., None]
    known = _levels(signed, values.device)
    above = torch.bucketize(shares, known, out_int32=True).clamp_(1, len(known) - 1)
    below, upper = known[above - 1], known[above]
    goes_up = pad(noise.reshape(rows, width), spare).view_as(shares) < (shares - below) / (
        upper - below
    )
    if not signed:
        goes_up |= (above == 1) & (shares > 0)
    levels = (above - 1 + goes_up).to(torch.uint8)
    return levels.view(rows, blocks * BLOCK)[:, :width].reshape(values.shape), scales


def unpack(levels: Tensor, scales: Tensor, *, signed: bool) -> Tensor:
    """Return the values in fp32."""
    known = _levels(signed, levels.device)
    rows = len(levels)
    width = levels[0].numel() if rows else 0
    values = known.index_select(0, levels.reshape(-1).int()).view(rows, width)
    spread = scales.repeat_interleave(BLOCK, dim=1)[:, :width]
    return (values * spread).view(levels.shape)


@cache
def _levels(signed: bool, device: torch.device) -> Tensor:
    """Return the levels in ascending order."""
    above = torch.logspace(-DECADES, 0, 127 if signed else 255, dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)
    levels = torch.cat([-above.flip(0), zero, above] if signed else [zero, above])
    return levels.float().to(device)
