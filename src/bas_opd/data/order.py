"""The order of the training pairs, a pure function of (seed, epoch), and batches taken in it.

The keys are SHA-256 digests, so the order is the same on every machine and with every version of
Python and torch, and a resumed run needs no state to find its position.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

from bas_opd.errors import DataError
from bas_opd.types import Example, PromptBatch


@lru_cache(maxsize=2)
def epoch_order(n: int, seed: int, epoch: int) -> tuple[int, ...]:
    """Return a permutation of n rows that depends on the seed and the epoch only."""
    return tuple(
        sorted(range(n), key=lambda row: hashlib.sha256(f"{seed}/{epoch}/{row}".encode()).digest())
    )


def steps_per_epoch(n: int, per_step: int) -> int:
    """Return the full batches of one epoch: 111 for 3,120 pairs by 28, with 12 pairs left over."""
    if per_step < 1:
        raise DataError(f"A step needs at least one prompt, not {per_step}.")
    if n < per_step:
        raise DataError(
            f"The set has {n} rows, fewer than the {per_step} prompts of one step. Prepare more "
            "rows or lower rollout.prompts_per_step."
        )
    return n // per_step


def step_indices(n: int, per_step: int, seed: int, step: int) -> tuple[int, ...]:
    """Return the rows of a step; the first step of a run is step 0."""
    epoch, position = divmod(step, steps_per_epoch(n, per_step))
    order = epoch_order(n, seed, epoch)
    return order[position * per_step : (position + 1) * per_step]


class PromptStream:
    """Batches of examples in the order of a seed; `cursor` counts the batches that were taken."""

    def __init__(
        self, examples: Sequence[Example], *, per_step: int, seed: int, steps: int = 0
    ) -> None:
        self._examples, self._per_step, self._seed = examples, per_step, seed
        self._steps = steps
        """Steps of the run; before the last of them a batch names the examples of the next."""
        self.cursor = self._step = self._round = 0

    def begin(self, step: int) -> None:
        """Begin a training step: the draws of its batches are addressed by it."""
        self._step, self._round = step, 0

    def take(self) -> PromptBatch:
        """Return the next batch: the first of the step, then further ones."""
        batch = PromptBatch(
            step=self._step,
            examples=self._batch(self.cursor),
            round=self._round,
            upcoming=self._batch(self.cursor + 1) if self._step + 1 < self._steps else (),
        )
        self.cursor += 1
        self._round += 1
        return batch

    def _batch(self, number: int) -> tuple[Example, ...]:
        rows = step_indices(len(self._examples), self._per_step, self._seed, number)
        return tuple(self._examples[row] for row in rows)
