"""What tests of audits need: a display that remembers, and checkpoints that lack a part."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from run_states import sign

from bas_opd.audit.subject import Request, Subject
from bas_opd.types import Hooks

PROVENANCE: dict[str, Any] = {
    "config_hash": "c",
    "policy": "learned",
    "query_ratio": "0.25",
    "teacher": "own",
    "teacher_mode": "ema",
    "source": "training",
    "dataset": "d",
    "seed": 42,
    "device": "cpu",
    "created": "2026-01-01T00:00:00Z",
}
"""The fields that every audit has."""


def subject_of(run: Path, hooks: Hooks | None = None, **options: Any) -> Subject:
    return Subject(Request(run=run, device="cpu", **options), hooks)


class Quiet:
    """Progress that keeps messages and counts."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.planned = self.done = 0

    def start(self, total: int, what: str = "steps", *, done: int = 0) -> None:
        self.planned += total

    def advance(self, count: int = 1) -> None:
        self.done += count

    def message(self, text: str) -> None:
        self.messages.append(text)


def replace_part(checkpoint: Path, part: str, other: Path | None) -> None:
    """Replace a part of a checkpoint, or take it out, with a manifest that agrees."""
    file = checkpoint / f"{part}.safetensors"
    file.unlink()
    if other is not None:
        shutil.copy(other, file)
    sign(checkpoint)
