"""Every kernel compiles for Ampere and Hopper, and keeps its values in registers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SHARED = 160 * 1024
"""Bytes of shared memory that a program may take on an A100."""


def test_kernels_compile_without_spilling(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("compiled.py")],
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) >= 26
    for kernel in found:
        assert kernel["stack"] == 0, kernel
        assert kernel["shared"] <= SHARED, kernel
