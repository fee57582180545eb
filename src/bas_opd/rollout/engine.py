"""The seam of a rollout engine: in this process, or an inference server beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from bas_opd.types import Part, PromptBatch, Rollouts


class RolloutEngine(Protocol):
    """Samples responses of the full-image policy (Alg. 1, line 3)."""

    def generate(self, batch: PromptBatch) -> Rollouts:
        """Draw the responses of a batch with the weights that were loaded last."""
        ...

    def load_weights(self, named: Mapping[str, Tensor], version: int) -> None:
        """Take over the student's weights; `version` is the step that they are about to sample."""
        ...

    def parts(self) -> Mapping[str, Part]:
        """Return what a checkpoint must hold of it, by the name of its file."""
        ...

    def close(self) -> None:
        """Free what the engine holds."""
        ...
