"""Graceful stop: a flag that the stages poll, set by SIGTERM and Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from bas_opd.compute.world import is_launched
from bas_opd.errors import PreemptionError

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
NOTICE = b"\nStopping: work in progress is finished or dropped, finished work is kept.\n"


class StopFlag:
    """Whether the run was asked to stop."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def poll(self) -> None:
        """Raise if the run was asked to stop. Called where a step can still be given up."""
        if self.reason is not None:
            raise PreemptionError(self.reason)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Turn signals into the flag. A second one ends the process at once.

        That is safe at any moment: a checkpoint is published by one rename, and an incomplete
        record is dropped when the run resumes. Only the main thread can handle signals. A launcher
        hands on what its processes get too, and kills them by itself: there only a signal after or
        with Ctrl-C counts. For a second Ctrl-C torchrun sends SIGTERM.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # A run under nohup ignores SIGHUP, and must keep ignoring it.
        handled = [n for n in SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._on_signal) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self.reason is not None:
            if "SIGINT" in (self.reason, signal.Signals(number).name) or not is_launched():
                os._exit(PreemptionError.exit_code)
            return
        self.reason = signal.Signals(number).name
        with contextlib.suppress(OSError):
            os.write(2, NOTICE)
