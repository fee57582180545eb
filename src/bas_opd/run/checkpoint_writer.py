"""Writes checkpoints beside the training: only the copy to host memory is waited for."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from bas_opd.run.checkpoint import Snapshot, retain, write_checkpoint


class CheckpointWriter:
    """One checkpoint at a time, in a thread; a failure is raised at the next call."""

    def __init__(self, folder: Path, *, keep: int, keep_every: int | None) -> None:
        self.folder = folder
        self.keep = keep
        self.keep_every = keep_every
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def submit(self, snapshot: Snapshot) -> None:
        """Begin to write a snapshot, after the one before it is done."""
        self.wait()
        self._pending = self._thread.submit(self._write, snapshot)

    def wait(self) -> None:
        """Return when nothing is left to write."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(self, *_: object) -> None:
        """Let nothing be written after the run has given its directory back."""
        self._thread.shutdown(wait=True)

    def _write(self, snapshot: Snapshot) -> None:
        write_checkpoint(self.folder, snapshot)
        retain(self.folder, keep=self.keep, keep_every=self.keep_every)
