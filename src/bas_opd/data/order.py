"""The order of the training pairs: a pure function of (seed, epoch).

The keys are SHA-256 digests, so the order is the same on every machine and under every version of
Python and torch, and a resumed run needs no state to find its place.
"""

from __future__ import annotations

import hashlib

from bas_opd.errors import DataError


def epoch_order(n: int, seed: int, epoch: int) -> list[int]:
    """A permutation of n rows that depends on the seed and the epoch alone."""
    return sorted(
        range(n), key=lambda row: hashlib.sha256(f"{seed}/{epoch}/{row}".encode()).digest()
    )


def steps_per_epoch(n: int, per_step: int) -> int:
    """Whole batches in one pass; the rest is left over (3,120 pairs by 28: 111 steps, 12 left)."""
    if per_step < 1:
        raise DataError(f"A step needs at least one prompt, but {per_step} were asked for.")
    if n < per_step:
        raise DataError(
            f"The set has {n} rows, fewer than the {per_step} prompts of one step. Prepare more "
            "rows or lower the prompts per step."
        )
    return n // per_step


def step_indices(n: int, per_step: int, seed: int, step: int) -> list[int]:
    """The rows of a step, where the first step of the run is step 0."""
    epoch, position = divmod(step, steps_per_epoch(n, per_step))
    order = epoch_order(n, seed, epoch)
    return order[position * per_step : (position + 1) * per_step]
