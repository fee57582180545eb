"""One run, one process: a lock on the run directory that is released when its owner dies."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bas_opd import disk
from bas_opd.errors import RunDirectoryError

NAME = "owner.json"
ATTEMPTS, PAUSE_SECONDS = 4, 0.05
"""Probing the lock takes it briefly, see `owner_of`: a taken lock is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A directory that this process has locked."""

    directory: Path
    locks: Mapping[str, int]
    """Name in the directory -> descriptor that holds the lock, `.` for the directory itself."""

    def check(self) -> None:
        """Raise unless it is still here; called before anything is published under its name.

        A directory can be moved, and another put in its place. Where the directory itself can be
        locked, nobody else can lock what is in it; else the file of the owner must be ours too.
        """
        for name, descriptor in self.locks.items():
            if not os.path.samestat(os.fstat(descriptor), os.lstat(self.directory / name)):
                raise RunDirectoryError(
                    f"{self.directory} is no longer what this process has locked: it was moved, or "
                    "another took its place. Nothing more is written to it. Resume the run where "
                    "its directory is now."
                )
            if name == ".":
                break


@contextmanager
def locked(
    directory: Path, *, otherwise: str = "choose another directory with run.output=DIRECTORY"
) -> Iterator[Hold]:
    """Hold the directory for as long as the context lasts; name the owner if it is taken.

    Nothing in it may be a link: what is written to it must not end up elsewhere. W&B leaves links
    in a folder of its own, to which nothing else is written.
    """
    for path in (directory, *directory.rglob("*")):
        if path.is_symlink() and directory / "wandb" not in path.parents:
            raise RunDirectoryError(
                f"{path} is a link, and nothing is written to places outside a directory through "
                f"its links. Remove the link, or {otherwise}."
            )
    with ExitStack() as descriptors:
        locks: dict[str, int] = {}
        # The owner's file could be removed, which would leave a second process a new one to lock.
        # It is locked too: network file systems lock no directories.
        for name, flags in ((".", os.O_RDONLY), (NAME, os.O_RDWR | os.O_CREAT)):
            # Opened without truncation: until the lock is ours, the text is the owner's.
            descriptor = disk.open_descriptor(directory / name, flags)
            descriptors.callback(os.close, descriptor)
            try:
                is_ours = _take(descriptor)
            except OSError as error:
                if name == ".":
                    continue
                raise RunDirectoryError(
                    f"The file system of {directory} has no locks ({error.strerror}), so two "
                    f"processes could write to it without noticing. Mount it with locks, or "
                    f"{otherwise}."
                ) from error
            if not is_ours:
                raise RunDirectoryError(
                    f"{directory} is in use by {_owner(directory)}. Wait for it to end, stop it, "
                    f"or {otherwise}."
                )
            locks[name] = descriptor
        disk.overwrite(locks[NAME], directory / NAME, json.dumps(_myself()).encode())
        yield Hold(directory=directory, locks=locks)


def owner_of(directory: Path) -> str | None:
    """Return who holds a directory now; None if nobody does, as far as this machine can tell."""
    for name in (".", NAME):
        try:
            descriptor = disk.open_descriptor(directory / name, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _owner(directory)
        except OSError:
            continue  # The file system has no such locks.
        finally:
            os.close(descriptor)
    return None


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


def _owner(directory: Path) -> str:
    try:
        owner = json.loads((directory / NAME).read_bytes())
        return f"process {owner['pid']} on {owner['host']} since {owner['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
