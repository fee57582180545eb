"""A model and a set so small that a whole run takes a second, and runs to compare with."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from process import Ended, Fault, Train, ask_to_stop, at, bas_opd
from shapes import make_pictures
from small_models import build_small_model

from bas_opd.rollout import Sampler
from bas_opd.run import loop as loop  # Loaded here, so that no child waits for torch.

TINY = Path(__file__).parents[2] / "configs" / "tiny.toml"

SETTINGS = (
    "rollout.prompts_per_step=4",
    "rollout.per_prompt=2",
    "rollout.max_response_tokens=4",
    "select.query_ratio=0.5",
    "select.replay_start=2",
    "run.steps=4",
    "run.checkpoint_every=1",
    "run.keep_checkpoints=2",
)
"""Two epochs of two steps, four queries each; the predictor chooses the rows of all but the first
step."""


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_small_model(tmp_path_factory.mktemp("faults") / "model", hidden=16)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults") / "data"
    return make_pictures(folder, n=8, seed=1, size=(96, 96)).folder


@pytest.fixture(scope="session")
def command(model: Path, data: Path) -> Callable[..., list[str]]:
    """The words of `bas-opd train` for a run directory; overrides that come later win."""

    def words(run: Path, *overrides: str) -> list[str]:
        paths = (f"model.path={model}", f"data.path={data}", f"run.output={run}")
        return ["train", str(TINY), *paths, *SETTINGS, *overrides]

    return words


@pytest.fixture(scope="session")
def train(command: Callable[..., list[str]]) -> Train:
    """Run `bas-opd train` in a process of its own, with or without a fault."""

    def run_to_its_end(run: Path, *overrides: str, fault: Fault | None = None) -> Ended:
        return bas_opd(*command(run, *overrides), fault=fault)

    return run_to_its_end


@pytest.fixture(scope="session")
def whole(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    run = tmp_path_factory.mktemp("whole") / "run"
    ended = train(run)
    assert ended.code == 0, ended.output
    return run


@pytest.fixture(scope="session")
def stopped_run(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after its third step, with the checkpoints of the second and third."""
    run = tmp_path_factory.mktemp("stopped") / "run"
    ended = train(run, fault=at(Sampler, "generate", ask_to_stop, call=4, before=True))
    assert ended.code == 75, ended.output
    return run


@pytest.fixture
def stopped(stopped_run: Path, tmp_path: Path) -> Path:
    """A copy of the stopped run, for damaging."""
    return shutil.copytree(stopped_run, tmp_path / "run")
