"""Processes in groups that hold all parameters each: the same step and run, one checkpoint."""

from __future__ import annotations

import shutil
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Train, in_world
from run_states import assert_same_end
from small_models import build_small_model
from stage_fixtures import make_examples
from test_reshard import assert_same_step
from test_runs import assert_ended, assert_same_run, assert_sound
from test_step import TOLERANCE, Case, Found, difference, step_alone, take_step

from bas_opd.compute.world import World
from bas_opd.errors import RankError
from bas_opd.model.loading import LoraSettings
from bas_opd.run.manifest import published


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    home = tmp_path_factory.mktemp("replicas")
    folder = build_small_model(home / "model", family="qwen3_vl", hidden=32)
    return Case(folder=folder, examples=make_examples(home, n=4))


@pytest.fixture(scope="module")
def alone(case: Case) -> Found:
    return take_step(case, World())


def _take_step(case: Case, replicas: int, world: World) -> Found:
    return take_step(case, world.replicated(replicas))


@pytest.mark.parametrize(
    ("size", "replicas", "reshard"), [(4, 2, False), (4, 2, True), (2, 2, False)], ids=str
)
def test_a_step_of_groups_is_that_of_one_process(
    size: int, replicas: int, reshard: bool, case: Case, alone: Found
) -> None:
    chosen = Case(folder=case.folder, examples=case.examples, reshard=reshard)
    found = in_world(size, partial(_take_step, chosen, replicas))
    for each in found:
        assert_same_step(each, alone)
        for name, weight in found[0].after.items():
            assert torch.equal(each.after[name], weight)  # Groups never drift apart.


def test_so_is_one_of_adapters_with_checkpointing(case: Case, tmp_path: Path) -> None:
    chosen = Case(
        folder=build_small_model(tmp_path / "model", family="qwen3_5", hidden=32),
        examples=case.examples,
        lora=LoraSettings(rank=2),
        checkpointing=True,
        reshard=True,
    )
    alone = step_alone(chosen, 4)
    for found in in_world(4, partial(_take_step, chosen, 2)):
        assert_same_step(found, alone)


def _apart(case: Case, world: World) -> Found:
    """Leave out the sum across groups."""

    def within(own: World, parts: Any) -> Any:
        return add(World(rank=own.part, size=own.parts, within=own.within), parts)

    add = World.begin_sum
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "begin_sum", within)
        return _take_step(case, 2, world)


def test_a_sum_that_stays_within_a_group_would_show(case: Case, alone: Found) -> None:
    found = in_world(4, partial(_apart, case))[0]
    assert difference(alone.gradients, found.gradients) > 100 * TOLERANCE


def test_groups_wait_no_longer_than_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[Any] = []

    def new_group(_: Any, timeout: timedelta) -> Any:
        waits.append(timeout)
        return new_group

    monkeypatch.setattr(dist, "new_group", new_group)
    world = World(rank=1, size=4, timeout_minutes=3)
    world.replicated(2)
    assert waits == [timedelta(minutes=3)] * 4

    def fail(*_: Any, **options: Any) -> None:
        raise RuntimeError("Connection closed by peer.")

    monkeypatch.setattr(dist, "new_group", fail)
    monkeypatch.setenv("MASTER_ADDR", "host")
    monkeypatch.setenv("MASTER_PORT", "29400")
    with pytest.raises(
        RankError, match=r"Rank 1 of 4 .* did not reach the others \(Connection closed by peer\)"
    ):
        world.replicated(2)


def trained(train: Train, size: int, run: Path, replicas: int, *overrides: str) -> None:
    how = (f"run.output={run}", f"shard.replicas={replicas}")
    ended = train(size, run, *how, *overrides)
    assert [each.code for each in ended] == [0] * size, ended
    assert_sound(run)


def test_a_run_of_groups_is_that_of_one_process_and_one_group_saves(
    train: Train, whole: dict[int, Path], stopped: dict[int, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    trained(train, 4, run, 2)
    assert_same_run(run, whole[1])
    names = {file.name for file in published(run / "checkpoints")[0].glob("student*")}
    assert names == {f"student-0000{n}-of-00002.safetensors" for n in (1, 2)}
    again = shutil.copytree(stopped[3], tmp_path / "again")
    trained(train, 4, again, 2, "run.steps=3")
    trained(train, 2, again, 1)
    assert_same_run(again, whole[1])
    both = shutil.copytree(stopped[1], tmp_path / "both")
    trained(train, 2, both, 2, "run.steps=3")
    # One group of one process writes the files of one.
    assert (published(both / "checkpoints")[0] / "student.safetensors").exists()
    trained(train, 1, both, 1)
    assert_same_run(both, whole[1])


def test_a_resumed_run_of_groups_ends_in_the_same_bytes(train: Train, tmp_path: Path) -> None:
    for run, steps in (("once", (4,)), ("twice", (2, 4))):
        for count in steps:
            trained(train, 2, tmp_path / run, 2, f"run.steps={count}", "shard.reshard=true")
    assert_same_end(tmp_path / "twice", tmp_path / "once")


def test_groups_must_be_equal(train: Train, tmp_path: Path) -> None:
    ended = train(3, tmp_path / "run", "shard.replicas=2")
    assert_ended(ended, 2, "shard.replicas is 2, which does not cut 3 processes into equal groups")
