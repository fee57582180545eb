"""What a reproduction will run, for how long and on how much disk, said before it begins."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from bas_opd.errors import BasOpdError
from bas_opd.text import counted, duration

ROLLOUT_SECONDS = {"cpu": 0.06, "gpu": 0.0045}
"""The time of a step over its rollouts, with the small model: roughly, on one CPU thread; on an
H200 with 15 runs in parallel (docs/results/policies)."""
QUESTION_SECONDS = {"cpu": 0.15, "gpu": 0.01}
PICTURE_SECONDS = 0.05
PICTURE_BYTES = 320_000
STATES = 6
"""Copies of the model that a run leaves: its own, and a checkpoint with two moments and teacher."""
ASK_ABOVE_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The work of a reproduction that is not done yet; time is a rough estimate."""

    out: Path
    runs: int
    steps: int
    """Of all runs together, and so are these:"""
    rollouts: int
    questions: int
    pictures: int
    jobs: int
    device: str
    model_bytes: int

    @property
    def seconds(self) -> float:
        on = "cpu" if self.device == "cpu" else "gpu"
        if self.device == "auto" and shutil.which("nvidia-smi") is None:
            on = "cpu"
        runs = self.rollouts * ROLLOUT_SECONDS[on] + self.questions * QUESTION_SECONDS[on]
        return (runs + self.pictures * PICTURE_SECONDS) / max(1, self.jobs)

    @property
    def bytes(self) -> int:
        return self.runs * STATES * self.model_bytes + self.pictures * PICTURE_BYTES

    @property
    def must_ask(self) -> bool:
        return self.seconds > ASK_ABOVE_SECONDS

    @property
    def text(self) -> str:
        drawn = f", and draw {counted(self.pictures, 'picture')}" if self.pictures else ""
        return (
            f"This will make {counted(self.runs, 'run')} of {counted(self.steps, 'step')} "
            f"altogether, {self.jobs} at a time{drawn}: about {duration(self.seconds)} and "
            f"{self.bytes / 1e9:.1f} GB in {self.out}. What is done already is kept."
        )

    def check_disk(self) -> None:
        """Refuse work that does not fit on the disk."""
        place = self.out.absolute()
        while not place.exists():  # It is made when the work begins, not to ask about it.
            place = place.parent
        free = shutil.disk_usage(place).free
        if free < self.bytes:
            raise BasOpdError(
                f"{self.out} has {free / 1e9:.1f} GB free, but the runs take about "
                f"{self.bytes / 1e9:.1f} GB. Free some space, or choose another --out."
            )
