"""W&B and Trackio themselves, offline: what they store is read back."""

from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_fixtures import TINY, events_of, small_settings

from bas_opd.run.record import parse_step
from bas_opd.run.tracking import tracked_values

ROOT = Path(__file__).parents[2]
SECRETS = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "HF_TOKEN": "hf_averysecrettoken",
    "OPENAI_API_KEY": "sk-averysecretkey",
}


def needs(name: str) -> pytest.MarkDecorator:
    reason = f"{name} is not installed; `make trainers` installs it"
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=reason)


def train(home: Path, model: Path, tracker: str) -> str:
    """Train a small run in a process of its own, and return what it printed."""
    settings = small_settings(home, model)
    done = subprocess.run(
        [sys.executable, "-m", "bas_opd", "train", str(TINY), *settings, "--track", tracker],
        env={
            **os.environ,
            **SECRETS,
            "PYTHONPATH": str(ROOT / "src"),
            "WANDB_MODE": "offline",
            "TRACKIO_DIR": str(home / "trackio"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "The tracker" not in done.stdout + done.stderr
    return done.stdout


def on_record(run: Path) -> dict[int, dict[str, float]]:
    """Step -> what a tracker should have of it."""
    steps = [event for event in events_of(run) if event["event"] == "step"]
    return {event["step"] + 1: tracked_values(parse_step(event)) for event in steps}


def holds_no_secret(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        content = path.read_bytes()
        assert not [name for name, secret in SECRETS.items() if secret.encode() in content], path


def wandb_records(path: Path) -> Iterator[Any]:
    """Read W&B's file: a header of 7 bytes, then the log format of LevelDB."""
    from wandb.proto import wandb_internal_pb2  # pyright: ignore[reportMissingImports]

    data, place, record = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # too little of a block for a header
            place += 32768 - place % 32768
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + 7])
        record += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""


@needs("wandb")
def test_wandb_stores_the_numbers_of_the_records_and_nothing_of_the_terminal(
    tmp_path: Path, small_qwen35: Path
) -> None:
    train(tmp_path, small_qwen35, "wandb")
    run = tmp_path / "run"
    (file,) = (run / "wandb").glob("offline-run-*/*.wandb")
    history, config, printed = {}, {}, []
    for record in wandb_records(file):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            items = {"/".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
            values = {name: float(json.loads(value)) for name, value in items.items()}
            step = int(values.pop("_step"))
            history[step] = {k: v for k, v in values.items() if not k.startswith("_")}
        elif kind == "run":
            config = {i.key: json.loads(i.value_json) for i in record.run.config.update}
        elif kind in ("output", "output_raw"):
            printed.append(record)
    expected = on_record(run)
    assert history.keys() == expected.keys()
    for step, values in expected.items():
        assert history[step] == pytest.approx(values)
    assert config["select"]["policy"] == "learned"
    assert printed == []
    holds_no_secret(run)


@needs("wandb")
def test_a_run_that_wandb_tracked_can_be_started_again(tmp_path: Path, small_qwen35: Path) -> None:
    train(tmp_path, small_qwen35, "wandb")
    assert any(path.is_symlink() for path in (tmp_path / "run" / "wandb").rglob("*"))
    train(tmp_path, small_qwen35, "wandb")


@needs("trackio")
def test_trackio_stores_the_numbers_of_the_records(tmp_path: Path, small_qwen35: Path) -> None:
    train(tmp_path, small_qwen35, "trackio")
    with sqlite3.connect(tmp_path / "trackio" / "bas-opd.db") as stored:
        rows = stored.execute("select step, metrics from metrics order by step").fetchall()
        ((config,),) = stored.execute("select config from configs").fetchall()
    assert {step: pytest.approx(json.loads(values)) for step, values in rows} == on_record(
        tmp_path / "run"
    )
    assert json.loads(config)["select"]["policy"] == "learned"
    holds_no_secret(tmp_path / "trackio")
