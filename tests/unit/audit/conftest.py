"""One run of five steps that keeps every checkpoint, and a set that it was not trained on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from audit_fixtures import Quiet
from run_fixtures import small_run
from shapes import make_pictures


@pytest.fixture
def quiet() -> Quiet:
    return Quiet()


@pytest.fixture(scope="session")
def trained(small_qwen35: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(
        tmp_path_factory.mktemp("audited"),
        small_qwen35,
        "run.checkpoint_every=1",
        "run.keep_checkpoints=9",
    )


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil; its data stay where they are."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture(scope="session")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("held-out") / "set", n=8, seed=9).folder
