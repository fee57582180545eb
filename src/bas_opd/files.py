"""Files that are complete or absent, and their hashes. Needs neither torch nor safetensors."""

from __future__ import annotations

import fcntl
import glob
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bas_opd import disk

KEPT_AT_ONCE = 5000
"""Hashes after which those so far are kept, for a process that is killed among very many files."""


def sha256(path: Path) -> str:
    """Return the hash of a file."""

    def digest() -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    return disk.by_library(path, digest)


def file_hashes(files: Mapping[str, Path], *, memory: Path | None = None) -> dict[str, str]:
    """Return name -> sha256 of each file.

    Hashes are kept in the file `memory` and reused as long as the files are not written to; remove
    it to have every byte read again.
    """
    known = {} if memory is None else _remembered(memory)
    states = {name: _state(path) for name, path in files.items()}
    unread = [name for name, state in states.items() if state not in known]
    read: dict[str, str] = {}
    with ThreadPoolExecutor() as pool:
        for start in range(0, len(unread), KEPT_AT_ONCE):
            names = unread[start : start + KEPT_AT_ONCE]
            read.update(zip(names, pool.map(lambda name: sha256(files[name]), names), strict=True))
            # A file that was written to meanwhile is read again the next time.
            same = (name for name in names if _state(files[name]) == states[name])
            if memory is not None and (new := {states[name]: read[name] for name in same}):
                known |= new
                write_json(memory, known)
    return {name: read.get(name) or known[state] for name, state in states.items()}


def _remembered(memory: Path) -> dict[str, str]:
    with suppress(FileNotFoundError, ValueError, RecursionError):
        known = json.loads(memory.read_bytes())
        if isinstance(known, dict) and all(isinstance(each, str) for each in known.values()):
            return known
    return {}


def _state(path: Path) -> str:
    """Return a hash that changes whenever the file does: of its path, what it is, size and times.

    The modification time can be set back, as copying does; the time of the last change cannot.
    """
    stat = path.stat()
    return hash_of(
        {
            "path": os.path.abspath(path),
            "file": [stat.st_dev, stat.st_ino],
            "size": stat.st_size,
            "mtime_ns": stat.st_mtime_ns,
            "ctime_ns": stat.st_ctime_ns,
        }
    )


def once(memory: Path, about: Any, work: Callable[[], None]) -> None:
    """Do work that passed already, as the file `memory` says, only if what it is about changed."""
    known, name = _remembered(memory), hash_of(about)
    if name not in known:
        work()
        write_json(memory, {**known, name: "passed"})


def hash_of(value: Any) -> str:
    """Return the hash of plain data; the order of keys does not matter."""
    return hashlib.sha256(_sorted(value).encode()).hexdigest()


@contextmanager
def staged_folder(place: Path) -> Iterator[Path]:
    """Yield a folder that becomes `place` on success and is removed on failure."""
    place = Path(os.path.abspath(place))
    # Two commands may write to the same place, and only one can publish.
    staging = staging_path(place.with_name(f"{place.name}.{secrets.token_hex(8)}"))
    _remove_leftovers(place)
    try:
        disk.make_folder(staging, parents=True)
        with _locked(staging):
            yield staging
            publish(staging, place)
    except OSError as error:  # The user knows the place, and the staging folder is gone by then.
        if error.filename is not None:
            error.filename = str(error.filename).replace(str(staging), str(place))
        raise
    finally:
        disk.remove_tree(staging, ignore_errors=True)


def _remove_leftovers(place: Path) -> None:
    """Remove what killed commands have left: staging folders whose lock is free."""
    for leftover in place.parent.glob(f".{glob.escape(place.name)}.{'[0-9a-f]' * 16}.partial"):
        # An empty one may be new and not locked yet.
        with suppress(OSError):
            if any(leftover.iterdir()):
                with _locked(leftover) as is_ours:
                    if is_ours:
                        disk.remove_tree(leftover)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder until its owner leaves or dies; yield whether the lock was free.

    It never is on a file system that cannot lock folders.
    """
    descriptor = disk.open_descriptor(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            is_ours = False
        else:
            is_ours = True
        yield is_ours
    finally:
        os.close(descriptor)


def publish(staging: Path, target: Path) -> None:
    """Give a complete folder its final name, after everything in it is on disk."""
    sync_tree(staging)
    disk.rename(staging, target)
    disk.sync(target.parent)


def sync_tree(folder: Path) -> None:
    """Wait until a folder and everything in it are on disk."""
    with ThreadPoolExecutor() as pool:  # One after another, thousands of pictures take minutes.
        list(pool.map(disk.sync, [*folder.rglob("*"), folder]))


def staging_path(path: Path) -> Path:
    """Return where the next content of a path is written before it replaces the old one."""
    return path.with_name(f".{path.name}.partial")


def write_text(path: Path, text: str) -> None:
    """Replace a text file atomically."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file atomically, and wait until it is on disk; a link is replaced, not followed."""
    staging = staging_path(path)
    disk.unlink(staging)  # A kill has left it.
    try:
        with disk.OpenFile(staging, "xb") as file:
            file.write(data)
            file.sync()
        disk.replace(staging, path)
    except OSError:
        with suppress(OSError):
            disk.unlink(staging)
        raise
    disk.sync(path.parent)


def append_json(path: Path, value: Mapping[str, Any]) -> None:
    """Append a line, and wait until it is on disk."""
    with disk.OpenFile(path, "ab") as file:
        file.write(json.dumps(value).encode() + b"\n")
        file.sync()


def drop_cut_line(path: Path, check: Callable[[], None] = lambda: None) -> int:
    """Remove a last line that a kill cut short, and return the size of the rest."""
    content = disk.read_file(path)
    whole = content.rfind(b"\n") + 1
    check()
    if whole < len(content):
        disk.truncate(path, whole)
    return whole


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a JSON file atomically."""
    write_text(path, json.dumps(value, indent=1) + "\n")


# Built once: `json.dumps` would build it again for each of thousands of samples.
_sorted = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
