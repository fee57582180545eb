"""Every change to a file system, and the reads that a run depends on, as calls of one module.

Tests replace `_call` to fail, to cut short or to log the n-th of them; nothing else in the package
changes files.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def _call(name: str, path: Path, act: Callable[..., T], *arguments: Any) -> T:
    """Make one call."""
    return act(*arguments)


class OpenFile:
    """A file without a buffer of its own: what was written is with the system."""

    def __init__(self, path: Path, mode: str) -> None:
        self.path = path
        self._file: Any = _call("open", path, partial(path.open, mode, buffering=0))

    def write(self, data: bytes) -> None:
        """Write all of it, in several calls where one takes only a part."""
        left = memoryview(data)
        while left:
            left = left[_call("write", self.path, self._file.write, left) :]

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size)

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(place, whence)

    def tell(self) -> int:
        return self._file.tell()

    def truncate(self, size: int) -> None:
        _call("truncate", self.path, self._file.truncate, size)

    def sync(self) -> None:
        """Wait until everything is on disk."""
        _call("fsync", self.path, os.fsync, self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_file(path: Path, data: bytes | str, *, sync: bool = False) -> None:
    """Write a new file, or over an old one; text is UTF-8."""
    with OpenFile(path, "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
        if sync:
            file.sync()


def read_file(path: Path) -> bytes:
    return _call("read", path, path.read_bytes)


def open_descriptor(path: Path, flags: int) -> int:
    """Open a file or a folder for locking."""
    return _call("open", path, os.open, path, flags | os.O_NOFOLLOW, 0o644)


def overwrite(descriptor: int, path: Path, data: bytes) -> None:
    """Replace what an open file holds."""
    _call("truncate", path, os.ftruncate, descriptor, 0)
    _call("write", path, os.pwrite, descriptor, data, 0)


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on disk."""
    descriptor = _call("open", path, os.open, path, os.O_RDONLY)
    try:
        _call("fsync", path, os.fsync, descriptor)
    finally:
        os.close(descriptor)


def rename(path: Path, target: Path) -> None:
    """Give a file or a folder a name that nothing has yet."""
    _call("rename", path, os.rename, path, target)


def replace(path: Path, target: Path) -> None:
    """Put a file in the place of another, atomically."""
    _call("replace", path, os.replace, path, target)


def unlink(path: Path) -> None:
    """Delete a file, if there is one."""
    _call("unlink", path, partial(path.unlink, missing_ok=True))


def make_folder(path: Path, *, parents: bool = False, exist_ok: bool = False) -> None:
    _call("mkdir", path, partial(path.mkdir, parents=parents, exist_ok=exist_ok))


def remove_folder(path: Path) -> None:
    """Delete an empty folder."""
    _call("rmdir", path, path.rmdir)


def remove_tree(path: Path, *, ignore_errors: bool = False) -> None:
    """Delete a folder with all that is in it."""
    try:
        _call("rmtree", path, shutil.rmtree, path)
    except OSError:
        if not ignore_errors:
            raise


def truncate(path: Path, size: int) -> None:
    _call("truncate", path, os.truncate, path, size)


def copy_file(source: Path, target: Path) -> None:
    _call("copy", target, shutil.copyfile, source, target)


def copy_tree(source: Path, target: Path, **options: Any) -> None:
    _call("copy", target, partial(shutil.copytree, source, target, **options))


def by_library(path: Path, act: Callable[..., T], *arguments: Any) -> T:
    """Let a library read or write a file by itself, as with mmap: one call, whatever it does."""
    return _call("library", path, act, *arguments)
