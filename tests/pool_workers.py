"""Work for tests of the pool, importable by the processes it starts."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from bas_opd.errors import BasOpdError
from bas_opd.reproduce.pool import Poll, Steps, Work
from bas_opd.run.stopping import StopFlag


def start() -> Work[str]:
    return work


def work(task: str, steps: Steps, poll: Poll) -> str:
    """Do what the task says: fail in some way, wait, or meet another one."""
    what, _, place = task.partition(" ")
    if what == "refuse":
        raise BasOpdError("This was refused.")
    if what == "break":
        raise KeyError("missing")
    if what == "crash":
        os._exit(9)
    if what == "wait":
        steps(1)
        while True:
            poll()
            time.sleep(0.01)
    if what == "late":  # handles the signal itself, as a run does, and ends too late to stop
        with StopFlag().listening():
            steps(1)
            time.sleep(0.6)
    if what == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
        poll()
    if what == "meet":
        folder, number = Path(place).parent, int(Path(place).name)
        Path(place).touch()
        until = time.monotonic() + 20
        while not (folder / str(1 - number)).exists():
            if time.monotonic() > until:
                raise BasOpdError("Nobody came.")
            time.sleep(0.01)
    print("said aloud", flush=True)
    return f"{os.getpid()} {os.getpgid(0)} {os.environ['OMP_NUM_THREADS']}"
