"""What a run ends in, and whether two runs ended in the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from run_fixtures import events_of

from bas_opd.files import write_json
from bas_opd.run.checkpoint import published, read_checkpoint
from bas_opd.run.manifest import manifest_of
from bas_opd.run.record_file import read_records

OWN = ("seconds", "waited_seconds", "run_id")
"""What no two runs share: times and ids."""
EXACT = (
    *("examples", "candidates", "selected", "explored", "scored", "prompt_tokens"),
    *("response_tokens", "calls", "scored_tokens", "processed_tokens", "prefilled_prompts"),
    *("student_tokens", "total_tokens", "learned", "rows", "kept", "grades"),
)
"""What runs of another number of processes share, whatever they round differently."""


def final_state(run: Path) -> dict[str, Any]:
    """Every tensor and number of the last checkpoint, and every byte of the model."""
    snapshot = read_checkpoint(published(run / "checkpoints")[0])
    tensors = {
        f"{part}/{name}": tensor
        for part, values in snapshot.tensors.items()
        for name, tensor in values.items()
    }
    ledger = {k: v for k, v in snapshot.data["ledger"].items() if k != "seconds"}
    weights = (run / "model" / "model.safetensors").read_bytes()
    return {"step": snapshot.step, "ledger": ledger, "weights": weights, "tensors": tensors}


def step_records(run: Path) -> list[dict[str, Any]]:
    """The records of the steps without their times and ids, which no two runs share."""
    return [
        {key: value for key, value in event.items() if key not in OWN}
        for event in read_records(run / "records.jsonl")
        if event["event"] == "step"
    ]


def assert_same_end(run: Path, other: Path) -> None:
    """Compare state, model and the records of every step, byte for byte."""
    ours, theirs = final_state(run), final_state(other)
    assert ours["tensors"].keys() == theirs["tensors"].keys()
    for name, tensor in theirs["tensors"].items():
        assert torch.equal(ours["tensors"][name], tensor), name
    assert ours["step"] == theirs["step"]
    assert ours["ledger"] == theirs["ledger"]
    assert ours["weights"] == theirs["weights"]
    assert step_records(run) == step_records(other)


def sign(checkpoint: Path) -> None:
    """Write a manifest that agrees with the files of a checkpoint as they are."""
    manifest = manifest_of(checkpoint, schema_version=1)
    write_json(checkpoint / "manifest.json", manifest)


def steps_of(run: Path) -> list[dict[str, Any]]:
    return [event for event in events_of(run) if event["event"] == "step"]


def utilities_of(step: dict[str, Any]) -> list[float]:
    """The utility of each row that was asked about; -1 where there was no answer."""
    return [-1 if value is None else value for value in step.get("utility", [])]


def totals_of(run: Path) -> dict[str, Any]:
    (finished,) = (event for event in events_of(run) if event["event"] == "finished")
    return {name: value for name, value in finished["totals"].items() if name != "seconds"}


def assert_same_run(run: Path, other: Path, *, rel: float = 2e-3) -> None:
    """The same draws, choices and costs; losses within what Adam makes of rounding."""
    assert len(steps_of(run)) == len(steps_of(other))
    for one, two in zip(steps_of(run), steps_of(other), strict=True):
        assert {key: one.get(key) for key in EXACT} == {key: two.get(key) for key in EXACT}
        assert [row["response"] for row in one["shown"]] == [
            row["response"] for row in two["shown"]
        ]
        assert one["loss"] == pytest.approx(two["loss"], rel=rel, abs=1e-6)
        assert utilities_of(one) == pytest.approx(utilities_of(two), rel=10 * rel, abs=1e-6)
    assert totals_of(run) == totals_of(other)
