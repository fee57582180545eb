"""How much host memory is free, as the system tells it."""

from __future__ import annotations

from pathlib import Path

from bas_opd.compute.memory import free_host_memory


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
