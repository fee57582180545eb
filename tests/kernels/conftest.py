"""Triton kernels without a GPU: in Triton's interpreter, and through its compiler."""

from __future__ import annotations

import importlib.util
import os

import pytest

IS_READY = importlib.util.find_spec("triton") is not None and "TRITON_INTERPRET" in os.environ


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip these tests where Triton is missing or would look for a GPU."""
    for item in items:
        if "kernels" in item.path.parts:
            reason = "needs Triton and TRITON_INTERPRET=1: run `make kernels`"
            item.add_marker(pytest.mark.skipif(not IS_READY, reason=reason))
            # numpy warns of what a kernel computes and then does not choose.
            item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))
