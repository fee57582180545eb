"""How long work reports its progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from bas_opd.run.record import EvaluationRecord, StepRecord


class Progress(Protocol):
    """Receives progress of any long work: one bar after another, and lines of text."""

    def start(self, total: int, what: str = "steps", *, done: int = 0) -> None:
        """Begin a bar of `total` units, `done` of which are finished already."""
        ...

    def advance(self, count: int = 1) -> None:
        """Move the newest bar on."""
        ...

    def message(self, text: str) -> None:
        """Show a line; it may hold anything that a dataset, a server or a model wrote."""
        ...


class RunProgress(Progress, Protocol):
    """Receives progress of a training run: also records of steps and evaluations, and totals."""

    def step(self, step: StepRecord) -> None: ...
    def evaluated(self, evaluation: EvaluationRecord) -> None: ...
    def finish(self, totals: Mapping[str, Any]) -> None: ...


class Quiet:
    """Shows nothing: the progress of a process that does not lead."""

    def start(self, total: int, what: str = "steps", *, done: int = 0) -> None: ...
    def advance(self, count: int = 1) -> None: ...
    def message(self, text: str) -> None: ...
    def step(self, step: StepRecord) -> None: ...
    def evaluated(self, evaluation: EvaluationRecord) -> None: ...
    def finish(self, totals: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class StepsAsBar:
    """Shows the steps of a training run as one bar of other work's progress."""

    progress: Progress

    def start(self, total: int, what: str = "steps", *, done: int = 0) -> None:
        self.progress.start(total, what, done=done)

    def advance(self, count: int = 1) -> None:
        self.progress.advance(count)

    def message(self, text: str) -> None:
        self.progress.message(text)

    def step(self, step: StepRecord) -> None:
        self.progress.advance()

    def evaluated(self, evaluation: EvaluationRecord) -> None: ...
    def finish(self, totals: Mapping[str, Any]) -> None: ...
