"""What is refused at the start, with one sentence of the leader and a non-zero exit everywhere."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from process import at, fail
from ranks import Ended, Train, Words, free_port, in_world
from shapes import make_pictures
from small_models import build_small_model
from typer.testing import CliRunner

import bas_opd.config
import bas_opd.files
from bas_opd.cli.main import app
from bas_opd.compute import world as world_module
from bas_opd.compute.world import World
from bas_opd.config import load_config
from bas_opd.data.records import PreparedSet
from bas_opd.errors import ConfigError, RankError
from bas_opd.files import hash_of
from bas_opd.run import footprint, loop, ranks, tracking
from bas_opd.run.directory import RunDirectory
from bas_opd.run.footprint import measure
from bas_opd.run.ranks import check_machines


def refused(ended: list[Ended], code: int, sentence: str) -> None:
    assert [each.code for each in ended] == [code] * len(ended), ended
    assert sentence in " ".join(ended[0].output.split()), ended[0].output
    assert not any(each.output for each in ended[1:]), ended


def on_rank_1(act: Callable[[], object]) -> Callable[[int], None]:
    def arm(rank: int) -> None:
        if rank == 1:
            act()

    return arm


def other_settings(*settings: str) -> None:
    load = bas_opd.config.load_config

    def changed(path: Any, overrides: Any) -> Any:
        return load(path, [*overrides, *settings])

    pytest.MonkeyPatch().setattr(bas_opd.config, "load_config", changed)


def on_machine(place: Path) -> None:
    """Be the first process of another machine, whose files are in a folder."""
    os.chdir(place)
    os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def test_ranks_with_other_packages(train: Train, tmp_path: Path) -> None:
    def older() -> None:
        now = {**ranks.package_versions(), "torch": "2.11.0"}
        pytest.MonkeyPatch().setattr(ranks, "package_versions", lambda: now)

    ended = train(2, tmp_path / "run", fault=on_rank_1(older))
    refused(ended, 2, "has other packages than the leader on")
    refused(ended, 2, f"torch 2.11.0 where the leader has {torch.__version__}.")
    assert not (tmp_path / "run").exists()


def test_ranks_with_other_kernels(train: Train, tmp_path: Path) -> None:
    def newer() -> None:
        now = {**loop.environment(), "triton": True}
        pytest.MonkeyPatch().setattr(loop, "environment", lambda: now)

    ended = train(2, tmp_path / "run", fault=on_rank_1(newer))
    refused(ended, 2, "has other kernels than the leader on")
    refused(ended, 2, ": True where the leader has False.")


def test_ranks_with_other_settings(train: Train, tmp_path: Path) -> None:
    ended = train(2, tmp_path / "run", fault=on_rank_1(lambda: other_settings("run.seed=7")))
    refused(ended, 2, "has other settings than the leader on")


def test_ranks_with_other_data(train: Train, tmp_path: Path) -> None:
    folder = make_pictures(tmp_path / "data", n=8, seed=2, size=(96, 96)).folder

    def other() -> None:
        load = PreparedSet.load
        pytest.MonkeyPatch().setattr(PreparedSet, "load", lambda _: load(folder))

    ended = train(2, tmp_path / "run", fault=on_rank_1(other))
    refused(ended, 2, "has other data than the leader on")


def test_a_rank_that_sees_another_file_system(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    ended = train(2, Path("run"), fault=on_rank_1(lambda: os.chdir(tmp_path / "there")))
    refused(ended, 2, "Put run.output on a file system that all machines share.")


def test_a_machine_that_has_another_model(
    train: Train, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seed in (("here", 0), ("there", 1)):
        build_small_model(
            tmp_path / name / "model", family="qwen3_vl", hidden=16, layers=2, seed=seed
        )
    monkeypatch.chdir(tmp_path / "here")
    there = on_rank_1(lambda: on_machine(tmp_path / "there"))
    ended = train(2, tmp_path / "run", "model.path=model", fault=there)
    refused(ended, 2, "Rank 1 on")
    refused(ended, 2, "has other files of the model model than the leader on")
    refused(ended, 2, ": model.safetensors. Give all machines the same files.")


@pytest.fixture
def pictures(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Path]]:
    """Two machines with a copy of the data each, as machine -> its pictures; one is here."""
    found = {}
    for place in ("here", "there"):
        copy = Path(shutil.copytree(data, tmp_path / place / "data"))
        found[place] = sorted((copy / "images").iterdir())
    monkeypatch.chdir(tmp_path / "here")
    return found


def test_a_machine_that_has_other_pictures(
    train: Train, tmp_path: Path, pictures: dict[str, list[Path]]
) -> None:
    first, second, third, *_ = pictures["there"]
    times = first.stat()
    shutil.copy(third, first)
    os.utime(first, ns=(times.st_atime_ns, times.st_mtime_ns))
    there = on_rank_1(lambda: on_machine(tmp_path / "there"))
    ended = train(2, tmp_path / "run", "data.path=data", fault=there)
    refused(ended, 2, "Rank 1 on")
    refused(ended, 2, "has other files of the data data than the leader on")
    refused(ended, 2, f": images/{first.name}. Give all machines the same files.")
    assert not (tmp_path / "run").exists()
    shutil.copy(third, second)
    ended = train(2, tmp_path / "run", "data.path=data", fault=there)
    refused(ended, 2, f": images/{first.name}, and 1 other file. Give")


def test_a_machine_that_lacks_a_change_that_the_leader_accepts(
    train: Train, tmp_path: Path, pictures: dict[str, list[Path]]
) -> None:
    for place, changed in (("here", 2), ("there", 1)):
        source, *targets = pictures[place]
        for target in targets[:changed]:
            shutil.copy(source, target)
    words = ("data.path=data", "run.steps=1", "--accept-changes")
    there = on_rank_1(lambda: on_machine(tmp_path / "there"))
    ended = train(2, tmp_path / "run", *words, fault=there)
    refused(ended, 2, f": images/{pictures['here'][2].name}. Give all machines the same files.")
    shutil.copy(pictures["here"][2], pictures["there"][2])
    ended = train(2, tmp_path / "run", *words, fault=there)
    assert [each.code for each in ended] == [0, 0], ended


def test_a_machine_reads_its_files_once(
    train: Train, tmp_path: Path, pictures: dict[str, list[Path]]
) -> None:
    def kept() -> None:
        on_machine(tmp_path / "there")
        read, unread = bas_opd.files.sha256, {path.resolve() for path in pictures["there"]}

        def watched(path: Path) -> str:
            assert path.resolve() not in unread, path
            return read(path)

        pytest.MonkeyPatch().setattr(bas_opd.files, "sha256", watched)

    words, run = ("data.path=data", "run.steps=1"), tmp_path / "run"
    ended = train(2, run, *words, fault=on_rank_1(lambda: on_machine(tmp_path / "there")))
    assert [each.code for each in ended] == [0, 0], ended
    (memory,) = run.glob("hashes-*.json")
    assert memory.name == f"hashes-{socket.gethostname()}.json"
    ended = train(2, run, *words, "run.steps=2", fault=on_rank_1(kept))
    assert [each.code for each in ended] == [0, 0], ended
    memory.unlink()
    ended = train(2, run, *words, "run.steps=3", fault=on_rank_1(kept))
    assert all(each.code for each in ended), ended


def test_every_machine_that_differs_is_named(
    pictures: dict[str, list[Path]], tmp_path: Path
) -> None:
    def check(world: World) -> str:
        socket.gethostname = lambda: f"node{world.rank}"
        data = PreparedSet.load(Path("data"))
        leaders = hash_of(data.picture_hashes())
        world.gather(None)
        if world.rank == 2:
            shutil.copy(pictures["here"][1], pictures["here"][0])
        world.gather(None)
        try:
            machine = replace(world, local_rank=0)
            check_machines({}, data, leaders, {}, RunDirectory(path=tmp_path), machine)
        except ConfigError as error:
            return str(error)
        return ""

    name = pictures["here"][0].name
    expected = (
        f"Rank 1 on node1 has other files of the data data than the leader on node0: images/{name}."
        " Files on node2 differ too. Give all machines the same files."
    )
    assert in_world(3, check) == [expected] * 3


@pytest.mark.parametrize(("local_rank", "expected"), [(0, ": manifest.json. Give"), (1, "")])
def test_the_first_process_of_a_machine_compares_for_all(
    data: Path, tmp_path: Path, local_rank: int, expected: str
) -> None:
    """Here all pictures are as prepared, but the leader's are others."""

    def check(world: World) -> str:
        try:
            machine = replace(world, local_rank=local_rank)
            own, run = PreparedSet.load(data), RunDirectory(path=tmp_path)
            check_machines({}, own, "other pictures", {}, run, machine)
        except ConfigError as error:
            return str(error)
        return ""

    for told in in_world(2, check):
        assert expected in told
        assert bool(told) == bool(expected)


def test_more_processes_than_gpus(train: Train, tmp_path: Path) -> None:
    def one_gpu(_: int) -> None:
        pytest.MonkeyPatch().setattr(torch.cuda, "device_count", lambda: 1)

    long = ("model.device=cuda", "shard.timeout_minutes=9")
    ended = train(2, tmp_path / "run", *long, fault=one_gpu)
    refused(ended, 2, "has 1 GPU, but process 2 of this machine needs one of its own.")


def test_ranks_of_other_groups(train: Train, tmp_path: Path) -> None:
    ended = train(
        4,
        tmp_path / "run",
        "shard.timeout_minutes=9",
        fault=on_rank_1(lambda: other_settings("shard.replicas=2")),
    )
    refused(ended, 2, "Rank 1 on")
    refused(ended, 2, "has other settings than the leader on")


@pytest.mark.parametrize("ranks", [{0}, {1}, {0, 1}], ids=str)
def test_an_error_before_processes_meet_is_told_at_once(
    ranks: set[int], train: Train, tmp_path: Path
) -> None:
    def fault(rank: int) -> None:
        if rank in ranks:
            other_settings("select.query_ratio=7")

    ended = train(2, tmp_path / "run", "shard.timeout_minutes=9", fault=fault)
    refused(ended, 2, "select.query_ratio")
    assert ("bas-opd: Rank 1 on" in ended[0].output) == (0 not in ranks)


def test_a_tracker_that_one_machine_lacks(train: Train, tmp_path: Path) -> None:
    def missing() -> None:
        pytest.MonkeyPatch().setattr(tracking, "TRACKERS", {})

    long = ("shard.timeout_minutes=9", "--track", "tensorboard")
    ended = train(2, tmp_path / "run", *long, fault=on_rank_1(missing))
    refused(ended, 2, "There is no tracker named 'tensorboard'.")


def test_a_fault_of_the_program_before_processes_meet(train: Train, tmp_path: Path) -> None:
    broken = at(tracking, "check_trackers", fail(TypeError("It is broken.")), call=1)
    ended = train(2, tmp_path / "run", "shard.timeout_minutes=9", fault=on_rank_1(broken))
    assert [each.code for each in ended] == [70, 70], ended
    assert "bas-opd: Rank 1 on" in ended[0].output
    assert "failed: TypeError: It is broken." in ended[0].output
    assert "Traceback" in ended[1].output


def test_a_file_that_one_process_may_not_read_before_they_meet(
    train: Train, tmp_path: Path
) -> None:
    """Outside of all that explains itself it is the error of one process, with its code."""
    error = PermissionError(errno.EACCES, os.strerror(errno.EACCES), "secret.toml")
    refusal = on_rank_1(at(tracking, "check_trackers", fail(error), call=1))
    ended = train(2, tmp_path / "run", "shard.timeout_minutes=9", fault=refusal)
    refused(ended, 1, "failed: secret.toml: Permission denied. Change the permissions")
    assert "Traceback" not in ended[1].output


@pytest.mark.parametrize(
    ("agents", "restarts", "shares", "refuses"),
    [(2, 3, True, True), (1, 3, True, False), (2, 0, True, False), (2, 3, False, False)],
)
def test_restarts_of_several_agents_that_share_a_store(
    agents: int, restarts: int, shares: bool, refuses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROUP_WORLD_SIZE", str(agents))
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", str(restarts))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", str(shares))
    expected = (
        pytest.raises(ConfigError, match=r"Set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")
        if refuses
        else nullcontext()
    )
    with expected, world_module.telling_others():
        pass


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rendezvous_that_never_completes(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": free_port()}
    for name, value in told.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    began = time.monotonic()
    with (
        pytest.raises(RankError, match=rf"Rank {rank} of 2 on .* did not reach the others"),
        World.joined("cpu", timeout_minutes=0.02),
    ):
        pass
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"])
def test_what_is_no_number_in_the_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in world_module.VARIABLES:
        monkeypatch.setenv(each, "1")
    monkeypatch.setenv(name, "one")
    with pytest.raises(ConfigError, match=f"{name} is 'one' in the environment"):
        world_module.launched()
    result = CliRunner().invoke(app, ["train", "tiny"])
    assert result.exit_code == 2
    assert f"bas-opd: {name} is 'one' in the environment" in result.stderr


def test_one_process_of_a_launcher_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in world_module.VARIABLES:
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with World.joined("cpu") as world:
        assert world == World()


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_host_without_room_for_all_its_processes(
    replicas: int, train: Train, words: Words, tmp_path: Path
) -> None:
    settings = ("optim.offload=true", f"shard.replicas={replicas}")
    config = load_config(Path(words(tmp_path)[1]), [*words(tmp_path)[2:], *settings])
    needed = measure(config, ranks=2 // replicas).host_of(2)
    assert replicas == 1 or needed > measure(config).host

    def with_room(size: int, arm: Callable[[int], None] | None = None) -> list[Ended]:
        def fault(rank: int) -> None:
            if arm is not None:
                arm(rank)
            pytest.MonkeyPatch().setattr(footprint, "free_host_memory", lambda: size)

        return train(2, tmp_path / "run", *settings, fault=fault)

    refused(with_room(needed - 1), 1, "GB of host memory for 2 processes, and")
    assert not (tmp_path / "run").exists()
    # Each is the only process of its machine.
    apart = with_room(needed // 2, lambda rank: on_machine(Path.cwd()))
    assert [each.code for each in apart] == [0, 0], apart


def test_another_machine_without_room(train: Train, tmp_path: Path) -> None:
    def elsewhere() -> None:
        on_machine(Path.cwd())
        pytest.MonkeyPatch().setattr(footprint, "free_host_memory", lambda: 1000)

    ended = train(2, tmp_path / "run", "optim.offload=true", fault=on_rank_1(elsewhere))
    refused(ended, 1, "but only 0.0 GB are free on ")
