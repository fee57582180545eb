"""The seam of a training method: what the loop calls, and what a checkpoint saves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.types import Part, PromptBatch, StepReport


class Prompts(Protocol):
    """The prompts of a run, batch after batch. How far it has read is saved in checkpoints."""

    def take(self) -> PromptBatch:
        """Return the next batch: first that of this step, on later calls further ones."""
        ...


class Method(Protocol):
    """One way to train: takes steps, and says what a checkpoint must hold.

    A step either returns with its updates made, or raises; then `rollback` undoes what it changed.
    """

    @property
    def model(self) -> VisionLanguageModel:
        """The student: what the run trains and saves."""
        ...

    def step(self, prompts: Prompts) -> StepReport:
        """Take one training step."""
        ...

    def rollback(self) -> bool:
        """Return to the state before a step that was given up.

        False if that is not possible, as after the first of several updates: then no checkpoint is
        written, and the run resumes from the one before.
        """
        ...

    def close(self) -> None:
        """End what goes on beside the loop, such as an inference engine or opening pictures."""
        ...

    def parts(self) -> Mapping[str, Part]:
        """Return everything that a checkpoint holds, by the name of its file."""
        ...


class PatientPoll:
    """Polls whether the run must stop, except while a step can no longer be given up.

    After the first of several updates a request to stop waits for the end of the step.
    """

    def __init__(self, poll: Callable[[], None]) -> None:
        self._poll = poll
        self.waits = False

    def __call__(self) -> None:
        if not self.waits:
            self._poll()
