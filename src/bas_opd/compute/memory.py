"""Surviving full memory, of a GPU or of the host: the same work in smaller batches."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from bas_opd.errors import BasOpdError, OutOfMemory

Result = TypeVar("Result")


SETTINGS = "model.max_pixels or rollout.max_response_tokens"
"""What makes the smallest batch smaller."""

_UNNAMED = (
    "DefaultCPUAllocator: can't allocate memory",
    "Cannot allocate memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
"""Words of errors without a class of their own: of a CPU, of a mapped file, of CUDA's libraries."""


def ran_out(error: Exception) -> bool:
    """Return whether an error means that memory ran out."""
    if isinstance(error, BasOpdError):
        return False  # It was explained already.
    is_named = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return is_named or any(words in str(error) for words in _UNNAMED)


def in_smaller_batches(
    run: Callable[[int], Result],
    *,
    limit: int,
    smallest: int,
    what: str,
    notice: Callable[[str], None],
    advice: str,
    lower: str = SETTINGS,
) -> tuple[Result, int]:
    """Run with a batch limit, halved as often as memory runs out; return the limit that fitted.

    `smallest` is the limit at which every batch is as small as it can be. `lower` and `advice`
    say what would make room then.
    """
    while True:
        try:
            return run(limit), limit
        except (RuntimeError, MemoryError) as error:
            if not ran_out(error):
                raise
            reason = str(error)
            if limit <= smallest:
                raise OutOfMemory(
                    f"The {what} does not fit into memory even in its smallest batch, "
                    f"{smallest:,}: {reason} Lower {lower}, or {advice}."
                ) from error
        # Outside the handler, which would keep the frames of the failed attempt alive.
        release()
        limit = max(smallest, limit // 2)
        notice(f"Out of memory in the {what}; continuing with batches of at most {limit:,}.")


def release() -> None:
    """Give back the memory of what nothing refers to any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def clear_frames(error: BaseException) -> None:
    """Let go of what the frames of an error hold, and those of what it came from."""
    known: set[int] = set()
    found: list[BaseException | None] = [error]
    while found:
        each = found.pop()
        if each is not None and id(each) not in known:
            known.add(id(each))
            traceback.clear_frames(each.__traceback__)
            found += [each.__cause__, each.__context__]


def free_host_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes that this process may still take of host memory; None if not known."""
    limits = []
    known = _numbers(root / "proc/meminfo")
    if "MemAvailable:" in known:
        limits.append(1024 * known["MemAvailable:"])
    group = root / "sys/fs/cgroup"
    try:
        most, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        # The cache of files counts as used, but makes room for others.
        limits.append(most - used + _numbers(group / "memory.stat").get("inactive_file", 0))
    except (OSError, ValueError):  # no control group, or one without a limit
        pass
    return min(limits, default=None)


def _numbers(path: Path) -> dict[str, int]:
    try:
        lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdecimal()}
