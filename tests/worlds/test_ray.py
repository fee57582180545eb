"""`bas-opd train --ray`: the bytes of torchrun, restarts, and clusters that are too small.

A real Ray cluster on this machine; `make ray` runs this in an environment that has Ray.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from ranks import Words
from run_states import assert_same_end
from typer.testing import CliRunner

from bas_opd.cli.main import app
from bas_opd.compute.world import VARIABLES
from bas_opd.errors import ConfigError, PreemptionError, RankError
from bas_opd.run import ray_ranks
from bas_opd.run.manifest import published
from bas_opd.run.ray_ranks import LOST, Place, _answers, _cause, _start, train_on_ray
from bas_opd.run.stopping import StopFlag

SECONDS = 240
with_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="ray is not installed; `make ray` runs this in an environment of its own",
)


def on_ray(words: list[str], *options: str) -> subprocess.Popen[str]:
    """Start a run of two workers on a new cluster of this machine."""
    environment = {"RAY_ADDRESS": "local", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "bas_opd", *words, *(options or ("--ray", "2"))],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end_of(driver: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = driver.communicate(timeout=SECONDS)
    return driver.returncode, " ".join(output.split())


def wait_for(path: Path, driver: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + SECONDS
    while not path.exists():
        assert time.monotonic() < deadline
        assert driver.poll() is None, driver.communicate()[0]
        time.sleep(0.02)


def rank_of(run: Path, rank: int) -> int:
    """Return the process id of a rank."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            told = (place / "environ").read_bytes().split(b"\0")
            words = (place / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"RANK={rank}".encode() in told and f"run.output={run}".encode() in words:
            return int(place.name)
    raise AssertionError(f"Rank {rank} does not run.")


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


@with_ray
def test_a_run_on_ray_ends_in_the_bytes_of_torchrun(
    words: Words, whole: dict[int, Path], tmp_path: Path
) -> None:
    code, output = end_of(on_ray(words(tmp_path / "run")))
    assert code == 0, output
    assert "with 2 processes" in output
    assert_same_end(tmp_path / "run", whole[2])


@with_ray
@pytest.mark.parametrize("killed", ["rank", "actor"])
def test_a_killed_worker_comes_back_to_the_same_end(
    killed: str, words: Words, whole: dict[int, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    driver = on_ray(words(run))
    wait_for(run, driver)
    rank = rank_of(run, 1)
    target = rank if killed == "rank" else parent_of(rank)
    while not published(run / "checkpoints"):
        wait_for(run, driver)
    os.kill(target, signal.SIGKILL)
    code, output = end_of(driver)
    assert code == 0, output
    what = "ended by SIGKILL" if killed == "rank" else "lost with its Ray actor"
    assert f"Rank 1 was {what}. All ranks start again from the last checkpoint" in output
    assert "after this, 2 restarts are left" in output
    assert "Resuming after step" in output
    assert_same_end(run, whole[2])


@with_ray
def test_without_restarts_a_killed_worker_ends_the_run(words: Words, tmp_path: Path) -> None:
    run = tmp_path / "run"
    driver = on_ray(words(run, "run.steps=500"), "--ray", "2", "--ray-restarts", "0")
    wait_for(run / "calls.jsonl", driver)
    os.kill(rank_of(run, 0), signal.SIGKILL)
    code, output = end_of(driver)
    assert code == 70, output
    assert "Rank 0 was ended by SIGKILL, and no restart is left." in output


@with_ray
def test_a_signal_to_the_command_stops_all_with_a_checkpoint(words: Words, tmp_path: Path) -> None:
    run = tmp_path / "run"
    driver = on_ray(words(run, "run.steps=500", "run.checkpoint_every=1000"))
    wait_for(run / "calls.jsonl", driver)
    driver.send_signal(signal.SIGTERM)
    code, output = end_of(driver)
    assert code == 75, output
    assert "Stopped by SIGTERM after step" in output
    assert published(run / "checkpoints")


@with_ray
def test_what_ranks_refuse_is_not_tried_again(words: Words, tmp_path: Path) -> None:
    code, output = end_of(on_ray(words(tmp_path / "run", "data.path=nowhere")))
    assert code == 1, output
    assert output.count("nowhere") == 1
    assert "start again" not in output
    code, output = end_of(on_ray(words(tmp_path / "run", "shard.replicas=3")))
    assert code == 2, output
    assert output.count("does not cut 2 processes into") == 1
    assert "start again" not in output


@with_ray
def test_a_cluster_that_is_too_small_is_refused_at_once(words: Words, tmp_path: Path) -> None:
    code, output = end_of(on_ray(words(tmp_path / "run"), "--ray", "1000"))
    assert code == 2, output
    assert "--ray 1000 needs 1000 CPUs, one for each worker, but the Ray cluster has" in output
    code, output = end_of(on_ray(words(tmp_path / "run", "model.device=cuda")))
    assert code == 2, output
    assert "--ray 2 needs 2 GPUs" in output


BUSY = """
import ray, sys
from bas_opd.run import ray_ranks
from contextlib import contextmanager

ray.init(address="local", num_cpus=2, include_dashboard=False)
taken = ray.util.placement_group([{"CPU": 1}])
ray.get(taken.ready())
ray_ranks._cluster = contextmanager(lambda: (yield ray))
ray_ranks.train_on_ray(["train", "tiny"], workers=2, wait_minutes=0.02)
"""


@with_ray
def test_a_cluster_that_stays_busy_is_given_up(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BUSY], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 1
    assert "The Ray cluster had no 2 free places of 1 CPU within 0.02 minutes" in done.stderr


def test_ray_that_is_not_installed_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"--ray needs Ray.*Run `pip install ray`"):
        train_on_ray(["train", "tiny"], workers=2)


class Slow:
    """Stands for Ray with actors that never reply."""

    def wait(self, replies: list[int], **_: Any) -> tuple[list[int], list[int]]:
        return [], replies


def test_actors_that_do_not_reply_are_given_up_or_stopped() -> None:
    stop = StopFlag()
    with pytest.raises(RankError, match="did not start in time"):
        _answers(Slow(), [1], stop, time.monotonic())
    stop.reason = "SIGTERM"
    with pytest.raises(PreemptionError, match="Stopped by SIGTERM while the Ray actors started"):
        _answers(Slow(), [1], stop, time.monotonic() + SECONDS)


def test_each_rank_is_told_how_many_are_on_its_machine() -> None:
    actors = [Mock() for _ in range(3)]
    for actor, machine in zip(actors, ("a", "b", "a"), strict=True):
        actor.place.remote.return_value = Place(machine=machine, address=machine, gpus=())
        actor.free_port.remote.return_value = 29500
    ray = Mock(wait=lambda replies, **_: (replies, []), get=lambda replies: replies)
    started = _start(ray, actors, ["train"], StopFlag(), time.monotonic() + SECONDS)
    told = [actor.start.remote.call_args.args[2] for actor in started]
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")
    found = [tuple(int(each[name]) for name in names) for each in told]
    assert found == [(0, 0, 2, 3), (1, 1, 2, 3), (2, 0, 1, 3)]


def test_a_rank_whose_actor_has_gone_already_does_not_start() -> None:
    code = "from bas_opd.compute.parent import end_with_parent; end_with_parent({}); print('runs')"
    for parent, said in ((os.getpid(), "runs\n"), (1 << 30, "")):
        words = [sys.executable, "-c", code.format(parent)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS)
        assert (done.stdout, bool(done.returncode)) == (said, not said)


def test_ray_under_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "0")
    with pytest.raises(ConfigError, match="Leave out --ray, or call `bas-opd train` without"):
        train_on_ray(["train", "tiny"], workers=2)


def test_the_cause_is_the_rank_that_did_not_end_by_itself() -> None:
    assert _cause([70, -9, 70]) == "Rank 1 was ended by SIGKILL"
    assert _cause([70, 70, LOST]) == "Rank 2 was lost with its Ray actor"
    assert _cause([70, 1]) == "Rank 1 ended with exit code 1"


class Replies:
    """Stands for Ray with actors that end with a code each, or only when they are killed."""

    exceptions = SimpleNamespace(RayError=OSError)

    def __init__(self, codes: list[int | None]) -> None:
        self.codes = codes
        self.actors = [
            SimpleNamespace(
                follow=SimpleNamespace(remote=partial(self._reply, rank)),
                send=SimpleNamespace(remote=partial(self._send, rank)),
            )
            for rank in range(len(codes))
        ]

    def _reply(self, rank: int) -> tuple[int, object]:
        return rank, object()

    def _send(self, rank: int, number: int) -> None:
        self.codes[rank] = -number

    def wait(self, replies: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        return replies[:1], replies[1:]

    def get(self, reply: tuple[int, object]) -> tuple[list[Any], int | None]:
        return [], self.codes[reply[0]]


def test_who_hangs_after_a_failure_is_killed_and_has_its_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_ranks, "GRACE_SECONDS", 0.05)
    for codes, expected in (([1, None], [1, 1]), ([0, 0], [0, 0]), ([-9, None], [-9, -9])):
        ray = Replies(list(codes))
        assert ray_ranks._follow(ray, ray.actors, StopFlag()) == expected


def test_workers_are_debugged_as_the_command_is(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Sequence[str]] = []
    monkeypatch.setattr(ray_ranks, "train_on_ray", lambda words, **_: told.append(words) or 0)
    for debug in (["--debug"], []):
        result = CliRunner().invoke(
            app, [*debug, "train", "tiny", "model.path=small", "--ray", "2"]
        )
        assert result.exit_code == 0, result.output
        assert told.pop() == [*debug, "train", "tiny", "model.path=small"]
