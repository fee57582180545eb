"""Triton kernels without a GPU: in Triton's interpreter, and through its compiler.

A process has one or the other: `make kernels` starts one of each.
"""

from __future__ import annotations

import importlib.util
import os

import pytest

HAS_TRITON = importlib.util.find_spec("triton") is not None
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip these tests without Triton, and those that the process is not for."""
    for item in items:
        if "kernels" not in item.path.parts:
            continue
        is_compiled = item.path.name == "test_compiled.py"
        is_here = HAS_TRITON and is_compiled != IS_INTERPRETED
        needs = "a process without" if is_compiled else "a process with"
        reason = f"needs Triton, and {needs} TRITON_INTERPRET=1: run `make kernels`"
        item.add_marker(pytest.mark.skipif(not is_here, reason=reason))
        # numpy warns of what a kernel computes and then does not choose, and of the interpreter.
        item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))
        item.add_marker(
            pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
        )
