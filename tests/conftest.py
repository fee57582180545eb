"""What every test may use: one small model of each family, built once a session."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from bas_opd.model.family import Family


def pytest_configure() -> None:
    # A shell lets what it starts in the background ignore Ctrl-C, and here it is pressed.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """More threads only cost time on models this small, and change the order of sums."""
    torch.set_num_threads(1)


def _small(folder: Path, *, family: Family) -> Path:
    # Here, so that tests of the pure pieces do not wait for transformers.
    from small_models import build_small_model

    return build_small_model(folder, family=family)


@pytest.fixture(scope="session")
def small_qwen35(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _small(tmp_path_factory.mktemp("qwen3_5"), family="qwen3_5")


@pytest.fixture(scope="session")
def small_qwen3vl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _small(tmp_path_factory.mktemp("qwen3_vl"), family="qwen3_vl")


@pytest.fixture(scope="session")
def small_qwen25vl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _small(tmp_path_factory.mktemp("qwen2_5_vl"), family="qwen2_5_vl")
