"""A process of a run hears of it when its launcher is killed; else it would go on alone.

Only Linux can tell it. The signal is sent when the thread ends that started this process, so it is
asked for only where that is the launcher's main thread, which lives as long as the launcher.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from bas_opd.errors import RankError


def end_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Let the system send this process a signal when its parent dies; no other would."""
    if sys.platform == "linux":
        set_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(set_death_signal, number)
    if os.getppid() != parent:  # It died before the signal was set.
        raise SystemExit(RankError.exit_code)


def stop_with_agent() -> None:
    """Stop with a checkpoint, as by SIGTERM, when the agent of torchrun is killed.

    An agent may also end while this process writes its checkpoint, as by a second signal. SIGTERM
    does not cut that off.
    """
    parent = os.getppid()
    if "TORCHELASTIC_RUN_ID" in os.environ and os.getpid() in started_by_main_thread(parent):
        end_with_parent(parent, signal.SIGTERM)


def started_by_main_thread(process: int) -> list[int]:
    """Return the processes that the main thread of another one has started, where Linux says so."""
    with suppress(OSError):
        return [*map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())]
    return []
