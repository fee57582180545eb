"""`bas-opd` in processes that agents of torchrun have started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

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
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text()
    for pid in map(int, children.split()):
        told = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        ranks = [each.removeprefix("RANK=") for each in told if each.startswith("RANK=")]
        found |= {int(rank): pid for rank in ranks}
    return found


def wait_for_checkpoint(run: Path, agent: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + SECONDS
    while not published(run / "checkpoints"):
        assert time.monotonic() < deadline
        assert agent.poll() is None, agent.communicate()[0]
        time.sleep(0.02)
