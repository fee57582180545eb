"""Several processes as torchrun starts them, forked from the test's own, which has torch loaded."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from bas_opd.compute.world import World

T = TypeVar("T")
SECONDS = 120
"""Nothing here takes longer unless it hangs."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended, and what it printed."""

    code: int
    output: str


class Ranks:
    """Processes of one world that run a function each."""

    def __init__(self, size: int, work: Callable[[int], None]) -> None:
        torch.set_num_threads(1)  # More threads would leave their locks held in the children.
        self.folder = Path(tempfile.mkdtemp())
        port = str(free_port())
        fork = multiprocessing.get_context("fork")
        self.processes = [
            fork.Process(target=_in_child, args=(rank, size, port, work, self.folder))
            for rank in range(size)
        ]
        for process in self.processes:
            process.start()

    def send(self, rank: int, number: signal.Signals) -> None:
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def output(self, rank: int) -> str:
        path = self.folder / f"{rank}.log"
        return path.read_text("utf-8", errors="replace") if path.exists() else ""

    def wait_for(self, sentence: str, rank: int = 0) -> None:
        """Return once a rank has printed a text."""
        deadline = time.monotonic() + SECONDS
        while sentence not in self.output(rank):
            assert time.monotonic() < deadline, self.output(rank)
            assert self.processes[rank].is_alive(), self.output(rank)
            time.sleep(0.01)

    def wait(self, seconds: float = SECONDS) -> list[Ended]:
        """Return how all ended; who hangs is killed, and the test fails."""
        deadline = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.1, deadline - time.monotonic()))
        hung = [rank for rank, process in enumerate(self.processes) if process.is_alive()]
        for rank in hung:
            self.processes[rank].kill()
            self.processes[rank].join()
        logs = "\n".join(self.output(rank) for rank in range(len(self.processes)))
        assert not hung, f"Ranks {hung} hung: {logs}"
        return [
            Ended(code=process.exitcode or 0, output=self.output(rank))
            for rank, process in enumerate(self.processes)
        ]


Words = Callable[..., list[str]]
Start = Callable[..., Ranks]
Train = Callable[..., list[Ended]]
"""Fixtures: the words of `train(size, run, *overrides, fault=None)`, its start, and its end."""


def in_world(size: int, work: Callable[[World], T]) -> list[T]:
    """Run a function on every rank of a world, and return what each returned."""
    if size == 1:
        return [work(World())]
    results = Path(tempfile.mkdtemp())

    def on_rank(rank: int) -> None:
        with World.joined("cpu", timeout_minutes=1) as world:
            found = work(world)
            (results / str(rank)).write_bytes(pickle.dumps(found))

    ended = Ranks(size, on_rank).wait()
    assert [each.code for each in ended] == [0] * size, "\n".join(e.output for e in ended)
    return [pickle.loads((results / str(rank)).read_bytes()) for rank in range(size)]


def train_in_world(
    size: int, words: Sequence[str], fault: Callable[[int], None] | None = None
) -> Ranks:
    """Start `bas-opd` on every rank; a fault is armed in each before."""

    def on_rank(rank: int) -> None:
        from bas_opd.cli.main import app

        if fault is not None:
            fault(rank)
        app(list(words))

    return Ranks(size, on_rank)


def _in_child(rank: int, size: int, port: str, work: Callable[[int], None], folder: Path) -> None:
    with (folder / f"{rank}.log").open("wb") as log:
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
    streams: Any = [
        os.fdopen(descriptor, "w", buffering=1, encoding="utf-8", closefd=False)
        for descriptor in (1, 2)
    ]
    sys.stdout, sys.stderr = streams
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if size > 1:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(size),
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
    try:
        work(rank)
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        raise SystemExit(1) from None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
