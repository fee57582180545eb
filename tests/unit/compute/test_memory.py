"""How much host memory is free, as the system tells it, and errors that mean it ran out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bas_opd.compute.memory import free_host_memory, ran_out
from bas_opd.errors import OutOfMemory


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / {"meminfo": "proc/meminfo"}.get(name, f"sys/fs/cgroup/memory.{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_the_free_memory_of_the_host_is_what_system_and_control_group_leave(
    tmp_path: Path,
) -> None:
    assert free_host_memory(tmp_path) is None
    write(tmp_path, meminfo="MemTotal:  9 kB\nMemAvailable:  8 kB\nHugePages_Total: 0\n")
    assert free_host_memory(tmp_path) == 8192
    write(tmp_path, max="max\n", current="4000\n", stat="anon 1\ninactive_file 500\n")
    assert free_host_memory(tmp_path) == 8192
    write(tmp_path, max="7000\n")
    assert free_host_memory(tmp_path) == 3500
    assert (free_host_memory() or 0) > 2**20  # of this machine


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("Tried to allocate 2.00 GiB."), True),
        (MemoryError(), True),
        (torch.AcceleratorError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("unable to mmap 8 bytes from file <x>: Cannot allocate memory (12)"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (OutOfMemory("It was explained."), False),
    ],
)
def test_memory_that_ran_out_is_known_by_class_or_words(error: Exception, expected: bool) -> None:
    assert ran_out(error) is expected
