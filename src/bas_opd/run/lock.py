"""One run, one process: a lock on the run directory that is released when its owner dies."""

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
ATTEMPTS, PAUSE_SECONDS = 4, 0.05
"""Probing the lock takes it briefly, see `owner_of`: a taken lock is tried again."""


@contextmanager
def locked(
    directory: Path, *, otherwise: str = "choose another directory with run.output=DIRECTORY"
) -> Iterator[None]:
    """Hold the directory for as long as the context lasts; name the owner if it is taken.

    Nothing in it may be a link: what is written to it must not end up elsewhere.
    """
    for path in (directory, *directory.rglob("*")):
        if path.is_symlink():
            raise RunDirectoryError(
                f"{path} is a link, and nothing is written to places outside a directory through "
                f"its links. Remove the link, or {otherwise}."
            )
    # Opened without truncation: until the lock is ours, the text is the owner's.
    descriptor = os.open(directory / NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        if not _take(descriptor):
            raise RunDirectoryError(
                f"{directory} is in use by {_owner(descriptor)}. Wait for it to end, stop it, or "
                f"{otherwise}."
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(_myself()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def owner_of(directory: Path) -> str | None:
    """Return who holds a directory now; None if nobody does, as far as this machine can tell."""
    try:
        descriptor = os.open(directory / NAME, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _owner(descriptor)
    else:
        return None
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> bool:
    for attempt in range(ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if attempt < ATTEMPTS - 1:
                time.sleep(PAUSE_SECONDS)
        else:
            return True
    return False


def _myself() -> dict[str, str | int]:
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"host": socket.gethostname(), "pid": os.getpid(), "since": started}


def _owner(descriptor: int) -> str:
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {owner['pid']} on {owner['host']} since {owner['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
