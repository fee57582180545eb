"""Which processes may ask the system for a signal when their parent dies."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bas_opd.compute.parent import started_by_main_thread

LAUNCHER = """
import subprocess, sys, time
from threading import Thread

child = "import time; from bas_opd.compute.parent import stop_with_agent; stop_with_agent(); "
child += "print('armed', flush=True); time.sleep(1); print('alive', flush=True)"

def start():
    subprocess.Popen([sys.executable, "-c", child]).wait()

{}
"""
BY_ITSELF, BY_A_THREAD = "start()", "Thread(target=start, daemon=True).start(); time.sleep(60)"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells it")
@pytest.mark.parametrize(
    ("start", "variable", "ends"),
    [
        (BY_ITSELF, "TORCHELASTIC_RUN_ID", True),
        (BY_ITSELF, "ANOTHER", False),
        (BY_A_THREAD, "TORCHELASTIC_RUN_ID", False),
    ],
    ids=["torchrun", "another launcher", "a thread"],
)
def test_a_process_hears_of_the_end_of_torchruns_main_thread_only(
    start: str, variable: str, ends: bool
) -> None:
    """Another thread that started it may end long before the launcher does."""
    agent = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER.format(start)],
        env={**os.environ, variable: "run"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert agent.stdout is not None
    assert agent.stdout.readline() == "armed\n"
    agent.kill()
    assert agent.communicate()[0] == ("" if ends else "alive\n")


def test_a_process_that_has_gone_has_started_none() -> None:
    assert started_by_main_thread(1 << 30) == []
