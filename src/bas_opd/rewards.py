"""What the rewards of a group of rollouts say: advantages, penalties, and which groups teach.

Plain numbers in float64. Needs no torch, so that a run can be checked from its records alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeVar

T = TypeVar("T")
Scale = Literal["std", "none"]
"""What a reward less its group's mean is divided by: the group's standard deviation, or nothing."""


def advantages(
    rewards: Sequence[float], group_size: int, *, scale: Scale = "std", epsilon: float = 1e-6
) -> list[float]:
    """Return A = (r - mean) / (std + epsilon) of every row; `none` leaves out the division.

    The rows of a group are neighbours, and the standard deviation has n - 1. Where all rewards of a
    group are equal, A is exactly 0: rounding would leave a tiny deviation to divide by.
    """
    if scale not in ("std", "none"):
        raise ValueError(f"scale must be 'std' or 'none', not {scale!r}.")
    found: list[float] = []
    for group in groups_of(rewards, group_size):
        if len(set(group)) == 1:
            found += [0.0] * group_size
            continue
        mean = math.fsum(group) / group_size
        apart = [reward - mean for reward in group]
        width = 1.0
        if scale == "std":
            width = math.sqrt(math.fsum(a * a for a in apart) / (group_size - 1)) + epsilon
        found += [a / width for a in apart]
    return found


def overlong_penalties(lengths: Sequence[int], *, limit: int, cache: int) -> list[float]:
    """Return DAPO's soft penalty of every length T, 0 or negative.

    It is 0 up to limit - cache, then (limit - cache - T) / cache, and -1 beyond the limit. A cache
    of 0 penalises nothing up to the limit.
    """
    if not 0 <= cache <= limit:
        raise ValueError(f"cache must lie between 0 and the limit {limit}, not {cache}.")
    return [
        -1.0 if length > limit else min(0, limit - cache - length) / max(1, cache)
        for length in lengths
    ]


def mixed_groups(is_right: Sequence[bool], group_size: int) -> list[int]:
    """Return the groups in which some rows are right and some are not, by their numbers."""
    return [
        number
        for number, group in enumerate(groups_of(is_right, group_size))
        if any(group) and not all(group)
    ]


def groups_of(rows: Sequence[T], group_size: int) -> list[Sequence[T]]:
    """Return the groups of rows, which are neighbours."""
    if group_size < 1 or len(rows) % group_size:
        raise ValueError(f"{len(rows)} rows cannot be cut into groups of {group_size}.")
    return [rows[at : at + group_size] for at in range(0, len(rows), group_size)]
