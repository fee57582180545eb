"""A whole run on the small model, for tests of what reads runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from shapes import make_pictures

from bas_opd.config import Config, load_config
from bas_opd.errors import PreemptionError
from bas_opd.run import loop
from bas_opd.run.record import EvaluationRecord, StepRecord
from bas_opd.run.record_file import RecordWriter, read_records
from bas_opd.run.stopping import StopFlag

TINY = Path(__file__).parents[1] / "configs" / "tiny.toml"


SMALL_STEPS = (
    "rollout.prompts_per_step=4",
    "rollout.max_response_tokens=6",
    "run.steps=4",
    "select.replay_start=4",
)
OFTEN = (*SMALL_STEPS, "run.checkpoint_every=1", "run.keep_checkpoints=9")


class Silent:
    """A console that shows nothing and remembers what was said."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def start(self, total: int, what: str = "steps", *, done: int = 0) -> None: ...
    def advance(self, count: int = 1) -> None: ...
    def step(self, step: StepRecord) -> None: ...
    def evaluated(self, evaluation: EvaluationRecord) -> None: ...
    def finish(self, totals: Mapping[str, Any]) -> None: ...
    def message(self, text: str) -> None:
        self.messages.append(text)


def tiny(model: Path, data: Path, output: Path, *overrides: str) -> Config:
    """The tiny configuration with its paths and some settings of its own."""
    paths = [f"model.path={model}", f"data.path={data}", f"run.output={output}"]
    return load_config(TINY, [*paths, *overrides])


def stop_at(monkeypatch: pytest.MonkeyPatch, poll_number: int) -> None:
    """Let the run be asked to stop at its n-th poll."""
    seen = 0

    def poll(flag: StopFlag) -> None:
        nonlocal seen
        seen += 1
        if seen == poll_number:
            raise PreemptionError("SIGTERM")

    monkeypatch.setattr(StopFlag, "poll", poll)


def small_settings(home: Path, model: Path, *overrides: str) -> list[str]:
    """Settings of a run of five short steps, with its data under `home`."""
    if not (home / "data").exists():
        make_pictures(home / "data", n=16, seed=1)
    return [
        f"model.path={model}",
        f"data.path={home / 'data'}",
        f"run.output={home / 'run'}",
        "rollout.prompts_per_step=4",
        "rollout.max_response_tokens=5",
        "select.replay_start=6",
        "run.steps=5",
        "run.checkpoint_every=2",
        *overrides,
    ]


def small_config(home: Path, model: Path, *overrides: str) -> Config:
    return load_config(TINY, small_settings(home, model, *overrides))


def small_run(home: Path, model: Path, *overrides: str) -> Path:
    """Train, and return the run directory."""
    return loop.train(small_config(home, model, *overrides), Silent()).directory


def events_of(run: Path) -> list[dict[str, Any]]:
    return list(read_records(run / "records.jsonl"))


def rewrite(run: Path, events: list[dict[str, Any]]) -> None:
    """Write other records in place of a run's, with a chain that holds."""
    with RecordWriter(run / "records.jsonl", keep_bytes=0) as writer:
        for event in events:
            writer.write(event)
