"""Random numbers as hashes of their places: the same however work is cut, on any device."""

from __future__ import annotations

from torch import Tensor

# Increment and multipliers of the splitmix64 generator, as signed 64-bit integers.
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
FIRST = 0xBF58476D1CE4E5B9 - 2**64
SECOND = 0x94D049BB133111EB - 2**64


def mix(key: Tensor) -> Tensor:
    """Return the splitmix64 output for each key; int64 wraps around alike on every device."""
    z = (key + 1) * GOLDEN
    z = (z ^ _shift(z, 30)) * FIRST
    z = (z ^ _shift(z, 27)) * SECOND
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Shift right as if unsigned."""
    return (z >> bits) & (2 ** (64 - bits) - 1)
