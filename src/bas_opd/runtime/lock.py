"""One run, one process: a lock on the run directory that dies with its owner."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bas_opd.errors import RunDirectoryError

NAME = "owner.json"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the directory for as long as the context lasts; name the owner if it is taken."""
    # Opened without truncation: until the lock is ours, the text is the owner's.
    descriptor = os.open(directory / NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunDirectoryError(
                f"{directory} is in use by {_owner(descriptor)}. Wait for it to end, stop it, or "
                "choose another directory with run.output=DIRECTORY."
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(_myself()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _myself() -> dict[str, str | int]:
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"host": socket.gethostname(), "pid": os.getpid(), "since": started}


def _owner(descriptor: int) -> str:
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {owner['pid']} on {owner['host']} since {owner['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
