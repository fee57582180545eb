"""`bas-opd` in processes that agents of torchrun have started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bas_opd.compute.parent import started_by_main_thread
from bas_opd.run.manifest import published

SECONDS = 240


ALONE = ("--standalone", "--nproc-per-node", "2")
"""Options of an agent that starts two processes."""


def torchrun(
    words: list[str], *options: str, agent: tuple[str, ...] = ALONE, shares: bool = False
) -> subprocess.Popen[str]:
    """Start an agent of torchrun, whose restarts may share a store."""
    environment = {"OMP_NUM_THREADS": "1"}
    if not shares:
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", *agent, *options),
            *("-m", "bas_opd", *words),
        ],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def workers_of(agent: subprocess.Popen[str]) -> dict[int, int]:
    """Rank -> process id of the workers that an agent has started."""
    found = {}
    for pid in started_by_main_thread(agent.pid):
        told = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        ranks = [each.removeprefix("RANK=") for each in told if each.startswith("RANK=")]
        found |= {int(rank): pid for rank in ranks}
    return found


def wait_for_checkpoint(run: Path, agent: subprocess.Popen[str]) -> None:
    _wait(agent, lambda: bool(published(run / "checkpoints")))


def wait_for_a_step(run: Path, agent: subprocess.Popen[str]) -> None:
    """Return once the teacher was asked."""
    _wait(agent, (run / "calls.jsonl").exists)


def _wait(agent: subprocess.Popen[str], is_there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_there():
        assert time.monotonic() < deadline
        assert agent.poll() is None, agent.communicate()[0]
        time.sleep(0.02)
