"""The cost of not losing a run: records and polling in a step, and checkpoints on disk.

Run `python benchmarks/checkpoint.py`. Records and polling may take 2 % of a step at the demo's
shape; a checkpoint of 1 GB, hashed and flushed, at least half the speed at which the same disk
takes a plain file of that size with a flush. Both sides of the disk are measured in turn.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import torch
from _sides import build_small_model, make_pictures
from transformers.utils import logging

from bas_opd.algorithm import train_step
from bas_opd.config import load_config, preset
from bas_opd.data.order import step_indices
from bas_opd.methods import BasOpd
from bas_opd.run.checkpoint import Snapshot, write_checkpoint
from bas_opd.run.events import step_event
from bas_opd.run.record_file import RecordWriter
from bas_opd.run.state import build_method
from bas_opd.run.stopping import StopFlag
from bas_opd.types import Hooks, PromptBatch

BLOCK = 8 << 20
ALLOWED_OVERHEAD = 0.02
REQUIRED_SPEED = 0.5


@dataclass(slots=True)
class Timed:
    """A function, and the seconds spent in it."""

    run: Callable[..., None]
    seconds: float = 0.0
    calls: int = 0

    def __call__(self, *args: object) -> None:
        started = perf_counter()
        self.run(*args)
        self.seconds += perf_counter() - started
        self.calls += 1


@dataclass(slots=True)
class Shares:
    """Seconds of each step, and of its record and polling."""

    steps: list[float] = field(default_factory=list)
    records: list[float] = field(default_factory=list)
    polls: list[float] = field(default_factory=list)


def main() -> None:
    """Measure both and print a table."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--folder", type=Path, help="on the disk to measure; else a temporary one")
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--megabytes", type=int, default=1000)
    options.add_argument("--repeats", type=int, default=5)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as name:
        _print_overhead(_overhead(Path(name), chosen.steps))
        _print_speed(*_speed(Path(name), chosen.megabytes, chosen.repeats), chosen.megabytes)


def _overhead(home: Path, steps: int) -> Shares:
    """Run the demo's steps with the records and the polling of a run."""
    data = make_pictures(home / "data", n=32, seed=0)
    build_small_model(home / "model", family="qwen3_5", seed=0)
    paths = [f"model.path={home / 'model'}", f"data.path={home / 'data'}"]
    config = load_config(preset("tiny"), paths)
    poll = Timed(StopFlag().poll)
    method = build_method(config, Hooks(poll=poll))
    assert isinstance(method, BasOpd)
    shares = Shares()
    with RecordWriter(home / "records.jsonl") as records:
        for step in range(steps + 1):
            rows = step_indices(len(data), config.rollout.prompts_per_step, 0, step)
            batch = PromptBatch(step=step, examples=tuple(data.examples[row] for row in rows))
            poll.seconds, started = 0.0, perf_counter()
            report = train_step(method.stages, batch, config.select.query_ratio)
            done = perf_counter()
            event = step_event(
                report,
                decode=method.model.processor.decode,
                examples=config.run.examples_per_step,
                data_folder=data.folder,
            )
            records.write(event)
            if step:  # The first one warms up.
                shares.steps.append(done - started)
                shares.records.append(perf_counter() - done)
                shares.polls.append(poll.seconds)
    return shares


def _speed(home: Path, megabytes: int, repeats: int) -> tuple[float, float]:
    """Return the median seconds of a checkpoint and of a plain file of the same size."""
    rows = megabytes * 1_000_000 // 4 // 4096
    quarter = torch.randn(rows // 4, 4096)
    parts = {
        "student": {"weight": quarter},
        "optimiser": {"exp_avg": quarter, "exp_avg_sq": quarter.clone()},
        "teacher": {"weight": quarter},
    }
    content = memoryview(quarter.numpy().tobytes())
    times: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats):
        started = perf_counter()
        write_checkpoint(home / "checkpoints", Snapshot(step=repeat, tensors=parts, data={}))
        times[0].append(perf_counter() - started)
        started = perf_counter()
        with (home / f"plain-{repeat}").open("wb", buffering=0) as file:
            for _ in range(4):
                for start in range(0, len(content), BLOCK):
                    file.write(content[start : start + BLOCK])
            os.fsync(file.fileno())
        times[1].append(perf_counter() - started)
    return statistics.median(times[0]), statistics.median(times[1])


def _print_overhead(shares: Shares) -> None:
    step, records, polls = map(statistics.median, (shares.steps, shares.records, shares.polls))
    share = (records + polls) / (step + records)
    print(f"{'a step of the demo':<34}{1000 * step:>9.2f} ms")
    print(f"{'  its record, flushed':<34}{1000 * records:>9.2f} ms")
    print(f"{'  asking whether to stop':<34}{1000 * polls:>9.2f} ms")
    met = "met" if share <= ALLOWED_OVERHEAD else "NOT MET"
    print(f"{'  both':<34}{100 * share:>9.2f} %    at most {100 * ALLOWED_OVERHEAD:.0f} %: {met}")


def _print_speed(checkpoint: float, plain: float, megabytes: int) -> None:
    share = plain / checkpoint
    met = "met" if share >= REQUIRED_SPEED else "NOT MET"
    print(f"{f'a plain file of {megabytes:,} MB':<34}{megabytes / plain:>9.0f} MB/s")
    print(f"{f'a checkpoint of {megabytes:,} MB':<34}{megabytes / checkpoint:>9.0f} MB/s")
    required = f"at least {100 * REQUIRED_SPEED:.0f} %: {met}"
    print(f"{'  of the plain file':<34}{100 * share:>9.0f} %    {required}")


if __name__ == "__main__":
    main()
