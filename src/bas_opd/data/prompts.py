"""The prompts of a run in order, batch after batch, from a place that can be saved."""

from __future__ import annotations

from collections.abc import Sequence

from bas_opd.data.order import step_indices
from bas_opd.types import Example, PromptBatch


class PromptStream:
    """Batches of examples in the order of a seed; `cursor` counts the batches that were taken."""

    def __init__(self, examples: Sequence[Example], *, per_step: int, seed: int) -> None:
        self._examples, self._per_step, self._seed = examples, per_step, seed
        self.cursor = 0
        self.step = 0
        """The training step that batches are taken for: their draws are addressed by it."""

    def take(self) -> PromptBatch:
        """Return the next batch."""
        rows = step_indices(len(self._examples), self._per_step, self._seed, self.cursor)
        self.cursor += 1
        return PromptBatch(step=self.step, examples=tuple(self._examples[row] for row in rows))
