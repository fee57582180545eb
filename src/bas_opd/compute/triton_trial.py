"""The kernel behind `compiling`."""

# pyright: reportMissingImports=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def trial(out):
    """Write a one."""
    tl.store(out, 1.0)
