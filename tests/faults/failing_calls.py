"""Let the n-th call of `bas_opd.disk` fail in a command, and see that nothing is lost."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from process import Ended, Fault, die
from torch.utils._python_dispatch import TorchDispatchMode

from bas_opd import disk
from bas_opd.run.checkpoint import is_intact, published

KINDS = ("ENOSPC", "EIO", "EINTR", "ESTALE", "short", "full")
"""Errors of one call, a write of half of the data, and a disk that is full from a call on."""
NEED_SPACE = {"write", "mkdir", "fsync", "library", "copy"}

NO_MEMORY = (
    "[enforce fail at alloc_cpu.cpp:121] data. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 4096 bytes. Error code 12 (Cannot allocate memory)"
)

Run = Callable[[Fault], Ended]


@dataclass(frozen=True, slots=True)
class FailingCall:
    """What goes wrong, and at which call."""

    number: int
    kind: str

    def __call__(self) -> None:
        """Arm it in the child."""
        lock, seen = threading.Lock(), 0

        def failing(name: str, path: Path, act: Any, *arguments: Any) -> Any:
            nonlocal seen
            with lock:
                seen += 1
                number = seen
            if self.kind == "full" and number >= self.number and name in NEED_SPACE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            if number == self.number and self.kind == "short":
                whole = name != "write" or not isinstance(arguments[0], memoryview)
                return act(*arguments) if whole else act(arguments[0][: len(arguments[0]) // 2])
            if number == self.number and self.kind != "full":
                code = getattr(errno, self.kind)
                raise OSError(code, os.strerror(code), str(path))
            return act(*arguments)

        disk._call = failing


def count_calls(run: Run) -> int:
    """Return how many calls a command makes."""
    calls: Any = multiprocessing.Value("i", 0)

    def arm() -> None:
        def counting(name: str, path: Path, act: Any, *arguments: Any) -> Any:
            with calls.get_lock():
                calls.value += 1
            return act(*arguments)

        disk._call = counting

    ended = run(arm)
    assert ended.code == 0, ended.output
    return calls.value


def assert_unharmed(ended: Ended, run: Path) -> None:
    """A failed command explains itself, and every published checkpoint is intact."""
    assert "Traceback" not in ended.output, ended.output
    assert ended.code in (0, 1, 2, 3), ended.output
    assert all(is_intact(path) for path in published(run / "checkpoints"))


class FailingAllocation(TorchDispatchMode):
    """Memory of the host runs out at the n-th operation on tensors."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.seen = number, 0

    def __call__(self) -> None:
        """Arm it in the child."""
        self.__enter__()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen += 1
        if self.seen == self.number:
            raise RuntimeError(NO_MEMORY)
        return func(*args, **(kwargs or {}))


class PowerCut:
    """The power fails at the n-th call: changes since the last sync are dropped, or not, by chance.

    Files keep their bytes as of their last sync; a file that was never synced is empty. Renames
    since the last sync of their folder are undone, the last first.
    """

    def __init__(self, number: int, seed: int) -> None:
        self.number, self._draw = number, random.Random(seed)
        self._lock, self._seen = threading.Lock(), 0
        self._before: dict[Path, bytes] = {}
        """File -> its bytes when it was last on disk."""
        self._renames: list[tuple[Path, Path]] = []

    def __call__(self) -> None:
        """Arm it in the child."""
        disk._call = self._watched

    def _watched(self, name: str, path: Path, act: Any, *arguments: Any) -> Any:
        with self._lock:  # One call at a time, so that what is on disk is known.
            self._seen += 1
            if self._seen == self.number:
                self._fail()
            if name in ("write", "truncate", "copy"):
                self._before.setdefault(path, path.read_bytes() if path.exists() else b"")
            result = act(*arguments)
            if name == "library":
                for file in (path, *path.rglob("*")) if path.is_dir() else (path,):
                    if file.is_file() and file.stat().st_mtime_ns > time.time_ns() - 10**9:
                        self._before.setdefault(file, b"")
            elif name == "fsync":
                self._before.pop(path, None)
                self._renames = [each for each in self._renames if each[0].parent != path]
            elif name in ("rename", "replace"):
                target = arguments[1]
                moved = {f: f for f in self._before if f == path or f.is_relative_to(path)}
                for file in moved:
                    self._before[target / file.relative_to(path)] = self._before.pop(file)
                if name == "rename":
                    self._renames.append((path, target))
            return result

    def _fail(self) -> None:
        for file, before in self._before.items():
            if file.is_file() and self._draw.random() < 0.5:
                file.write_bytes(before)
        for path, target in reversed(self._renames):
            if self._draw.random() < 0.5:
                break
            if target.exists() and not path.exists():
                target.rename(path)
        die()
