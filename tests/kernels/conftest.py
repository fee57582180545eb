"""Triton kernels without a GPU: in Triton's interpreter, and through its compiler."""

from __future__ import annotations

import importlib.util
import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip these tests where Triton is missing or would look for a GPU."""
    if importlib.util.find_spec("triton") is None or not os.environ.get("TRITON_INTERPRET"):
        needs = pytest.mark.skip(reason="needs Triton and TRITON_INTERPRET=1: run `make kernels`")
        for item in items:
            if "kernels" in item.path.parts:
                item.add_marker(needs)
