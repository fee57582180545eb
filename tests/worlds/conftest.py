"""A model and a set so small that a run of several processes takes seconds."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from process import ask_to_stop, at
from ranks import Ended, Ranks, Start, Train, Words, train_in_world
from shapes import make_pictures
from small_models import build_small_model

from bas_opd.rollout import Sampler

# Loaded here, so that no child waits for it.
for name in (
    "bas_opd.cli.main",
    "bas_opd.commands.named_set",
    "bas_opd.evaluate.during_training",
    "bas_opd.evaluate.rewarding",
    "bas_opd.run.console",
    "bas_opd.run.loop",
    "bas_opd.run.tracking",
    "torch.distributed",
):
    import_module(name)

TINY = Path(__file__).parents[2] / "configs" / "tiny.toml"
SETTINGS = (
    "rollout.prompts_per_step=4",
    "rollout.per_prompt=2",
    "rollout.max_response_tokens=4",
    "select.query_ratio=0.5",
    "select.replay_start=2",
    # Adam makes much of rounding: the first steps of two worlds would soon differ in a token.
    "optim.learning_rate=1e-5",
    "shard.timeout_minutes=1",
    "run.steps=4",
    "run.checkpoint_every=1",
    "run.keep_checkpoints=2",
)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_small_model(
        tmp_path_factory.mktemp("worlds") / "model", family="qwen3_vl", hidden=16, layers=2
    )


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("worlds") / "data"
    return make_pictures(folder, n=8, seed=1, size=(96, 96)).folder


@pytest.fixture(scope="session")
def words(model: Path, data: Path) -> Words:
    """The words of `bas-opd train` for a run directory; overrides that come later win."""

    def of(run: Path, *overrides: str) -> list[str]:
        paths = (f"model.path={model}", f"data.path={data}", f"run.output={run}")
        return ["train", str(TINY), *paths, *SETTINGS, *overrides]

    return of


@pytest.fixture(scope="session")
def start(words: Words) -> Start:
    """Start `bas-opd train` in so many processes."""

    def begin(
        size: int, run: Path, *overrides: str, fault: Callable[[int], None] | None = None
    ) -> Ranks:
        return train_in_world(size, words(run, *overrides), fault)

    return begin


@pytest.fixture(scope="session")
def train(start: Start) -> Train:
    """Run `bas-opd train` in so many processes to its end."""

    def run_to_its_end(
        size: int, run: Path, *overrides: str, fault: Callable[[int], None] | None = None
    ) -> list[Ended]:
        return start(size, run, *overrides, fault=fault).wait()

    return run_to_its_end


@pytest.fixture(scope="session")
def whole(train: Train, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Runs of one, two and three processes that nothing happened to."""
    home = tmp_path_factory.mktemp("whole")
    for size in (1, 2, 3):
        ended = train(size, home / str(size))
        assert [each.code for each in ended] == [0] * size, ended
    return {size: home / str(size) for size in (1, 2, 3)}


@pytest.fixture(scope="session")
def stopped(train: Train, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Runs of one, two and three processes that were stopped after their second step."""
    home = tmp_path_factory.mktemp("stopped")
    for size in (1, 2, 3):
        ended = train(size, home / str(size), fault=stop_last_rank(size))
        assert [each.code for each in ended] == [75] * size, ended
    return {size: home / str(size) for size in (1, 2, 3)}


def stop_last_rank(size: int) -> Callable[[int], None]:
    """Let the last rank get SIGTERM when its third step begins."""
    arm = at(Sampler, "generate", ask_to_stop, call=3, before=True)
    return lambda rank: arm() if rank == size - 1 else None
