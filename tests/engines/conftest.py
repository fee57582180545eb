"""Tests with the real vLLM, on a CPU; `make engines` runs them in an environment of their own."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            if find_spec("vllm") is None:
                item.add_marker(pytest.mark.skip(reason="needs vLLM; `make engines` installs it"))
            item.add_marker(pytest.mark.filterwarnings("ignore"))  # vLLM's are not ours.
