"""A run of 100,000 steps, and 100,000 rows of data: what a command costs above a small one.

Run `python benchmarks/long_run.py`. The records are synthetic; model, data and checkpoint are those
of a real run. Each command is a process of its own: CPU seconds and peak memory, once with ten
steps or rows and once with many. `train` and `watch` may take 2 s and 200 MB more than with
ten, `verify` 400 MB in all, and `report` 30 s for a page of 3 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from _sides import build_small_model, make_pictures

from bas_opd.config.schema import Config
from bas_opd.data.records import CropRow, PreparedSet, Row
from bas_opd.data.writing import staged_set
from bas_opd.files import write_json
from bas_opd.run.checkpoint import SCHEMA_VERSION
from bas_opd.run.ledger import Ledger
from bas_opd.run.manifest import MANIFEST, STATE, manifest_of
from bas_opd.run.record import parse_step
from bas_opd.run.record_file import RecordWriter
from tests.synthetic_steps import synthetic_steps

FEW = 10
CHILD = """
import atexit, re, sys, time
def cost():
    peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]
    print(time.process_time(), peak, file=sys.stderr)
atexit.register(cost)
from bas_opd.cli.main import app
app()
"""
"""Prints the seconds that it computed, which other processes do not change, and its peak memory."""
SETTINGS = (
    "rollout.prompts_per_step=4",
    "rollout.per_prompt=2",
    "rollout.max_response_tokens=4",
    "select.query_ratio=0.5",
    "select.replay_start=2",
    "run.checkpoint_every=1000",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a process took."""

    seconds: float
    megabytes: float


def main() -> None:
    """Measure every command at both sizes and print a table."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--steps", type=int, default=100_000)
    options.add_argument("--rows", type=int, default=100_000)
    options.add_argument("--folder", type=Path, help="for the runs; else a temporary one")
    options.add_argument(
        "--commands", nargs="*", default=["train", "watch", "verify", "report", "rows"]
    )
    chosen = options.parse_args()
    os.fsync = lambda _: None  # Nothing that is made here must survive a crash.
    with tempfile.TemporaryDirectory(dir=chosen.folder) as name:
        home = Path(name)
        model = build_small_model(home / "model", hidden=16)
        paths = [f"model.path={model}", *SETTINGS]
        print(f"{'':<24}{'seconds':>9}{'MB':>7}{'with ten':>17}{'above':>16}")
        if set(chosen.commands) - {"rows"}:
            _measure_steps(home, paths, chosen.steps, chosen.commands)
        if "rows" in chosen.commands:
            _measure_rows(home, paths, chosen.rows)


def _measure_steps(home: Path, paths: list[str], steps: int, commands: list[str]) -> None:
    data = make_pictures(home / "data", n=8, seed=1, size=(96, 96))
    paths = [*paths, f"data.path={data.folder}"]
    _bas_opd("train", "tiny", *paths, f"run.output={home / 'real'}", f"run.steps={FEW}")
    few, many = (_long_run(home / "real", home / f"run-{n}", data, n) for n in (FEW, steps))
    size = (many / "records.jsonl").stat().st_size
    print(f"{steps:,} steps on record, {size / steps:,.0f} bytes each")
    for command in commands:
        costs = []
        for run, n in ((few, FEW), (many, steps)):
            words = {
                "watch": ["watch", str(run), "--once"],
                "verify": ["verify", str(run), "--unfinished"],
                "report": ["report", str(run)],
                "train": ["train", "tiny", *paths, f"run.output={run}", f"run.steps={n + 1}"],
            }
            if command in words:
                copy = shutil.copytree(run, home / "kept")
                costs.append(_bas_opd(*words[command]))
                if command == "report":
                    print(f"a page of {(run / 'report.html').stat().st_size / 1e6:,.2f} MB")
                shutil.rmtree(run)
                copy.rename(run)
        if costs:
            _print(command, *costs)


def _measure_rows(home: Path, paths: list[str], rows: int) -> None:
    for name in ("first start", "next start"):
        costs = []
        for n in (FEW, rows):
            data = home / f"rows-{n}"
            if not data.exists():
                _rows(data, n)
            run = home / f"run-of-rows-{n}"
            steps = 1 if name == "first start" else 2
            words = [*paths, f"data.path={data}", f"run.output={run}", f"run.steps={steps}"]
            costs.append(_bas_opd("train", "tiny", *words))
        _print(f"{rows:,} rows, {name}", *costs)


def _long_run(real: Path, run: Path, data: PreparedSet, steps: int) -> Path:
    """Return a run that has taken so many steps and has one left."""
    shutil.copytree(real, run, ignore=shutil.ignore_patterns("model", "records.jsonl", "step-*"))
    identity = json.loads((run / "run.json").read_bytes()) | {"steps": steps + 1}
    write_json(run / "run.json", identity)
    config = Config.model_validate(identity["config"])
    ledger = Ledger()
    with RecordWriter(run / "records.jsonl") as records:
        source = {"folder": str(data.folder), "source": data.source}
        opening = {**identity, "data": {**source, **identity["dataset"]}}
        records.write({"event": "started", **opening})
        for event in synthetic_steps(config, data, steps, random.Random(0), {}, 2):
            ledger.charge(parse_step(event))
            records.write(event)
        place = records.place
    (old,) = sorted((real / "checkpoints").glob(f"step-{FEW:08d}"))
    checkpoint = shutil.copytree(old, run / "checkpoints" / f"step-{steps:08d}")
    state = json.loads((old / STATE).read_bytes())
    state |= {"step": steps, "ledger": ledger.totals(), "cursor": steps, **place}
    write_json(checkpoint / STATE, state)
    write_json(checkpoint / MANIFEST, manifest_of(checkpoint, schema_version=SCHEMA_VERSION))
    return run


def _rows(folder: Path, rows: int) -> None:
    """Write a set of so many rows, each with a picture of its own."""
    source = make_pictures(folder.with_name("one"), n=1, seed=1, size=(96, 96))
    picture = source.examples[0].image.read_bytes()
    shutil.rmtree(source.folder)
    with staged_set(folder) as writer:
        for index in range(rows):
            content = picture + index.to_bytes(8, "big")
            image = writer.store(content, name="picture.png", place="images").name
            crop = CropRow(box=(10, 10, 40, 40), area=900 / 96**2)
            writer.add(Row(id=f"{index}", image=image, crop=crop, question=f"Which is {index}?"))
        writer.finish(source="A benchmark")


def _bas_opd(*words: str) -> Cost:
    """Run a command to its end."""
    ended = subprocess.run(
        [sys.executable, "-c", CHILD, *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
    )
    if ended.returncode:
        raise SystemExit(f"bas-opd {' '.join(words)} failed: {ended.stderr}")
    seconds, kilobytes = ended.stderr.rsplit(maxsplit=2)[-2:]
    return Cost(seconds=float(seconds), megabytes=int(kilobytes) / 1e3)


def _print(name: str, few: Cost, many: Cost) -> None:
    print(
        f"{name:<24}{many.seconds:>9.1f}{many.megabytes:>7.0f}"
        f"{few.seconds:>9.1f} {few.megabytes:>4.0f} MB"
        f"{many.seconds - few.seconds:>8.1f} s {many.megabytes - few.megabytes:>5.0f} MB",
        flush=True,
    )


if __name__ == "__main__":
    main()
