"""`torchrun -m bas_opd train`, with its agent: a killed process comes back by itself."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from ranks import Words, free_port
from run_states import assert_same_end
from torchrun import SECONDS, torchrun, wait_for_a_step, wait_for_checkpoint, workers_of

from bas_opd.run.directory import RunDirectory
from bas_opd.run.manifest import published


@pytest.mark.parametrize(("rank", "shares"), [(0, False), (1, True)])
def test_a_killed_process_comes_back_to_the_same_end(
    rank: int, shares: bool, words: Words, whole: dict[int, Path], tmp_path: Path
) -> None:
    """Attempts may share a store: each has notes of its own. The leader's end is noticed too."""
    run = tmp_path / "run"
    agent = torchrun(words(run), "--max-restarts", "2", shares=shares)
    wait_for_checkpoint(run, agent)
    os.kill(workers_of(agent)[rank], signal.SIGKILL)
    output, _ = agent.communicate(timeout=SECONDS)
    assert agent.returncode == 0, output
    assert "Resuming after step" in output or output.count("Loading the model") == 1
    assert_same_end(run, whole[2])


@pytest.mark.parametrize("rank", [0, 1])
def test_so_it_does_with_two_agents_as_on_two_machines(
    rank: int, words: Words, whole: dict[int, Path], tmp_path: Path
) -> None:
    run, place = tmp_path / "run", f"127.0.0.1:{free_port()}"
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", place, "--rdzv-id", "run")
    each = ("--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "2", *meeting)
    agents = [torchrun(words(run), agent=each) for _ in range(2)]
    wait_for_checkpoint(run, agents[0])
    started = [workers_of(agent) for agent in agents]
    assert sorted(rank for ranks in started for rank in ranks) == [0, 1]
    os.kill(next(ranks[rank] for ranks in started if rank in ranks), signal.SIGKILL)
    outputs = [agent.communicate(timeout=SECONDS)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    assert any("Resuming after step" in output for output in outputs) or (
        "".join(outputs).count("Loading the model") == 1
    )
    assert_same_end(run, whole[2])


@pytest.mark.parametrize("target", [0, 1])
def test_a_signal_to_one_of_two_agents_stops_all_with_a_checkpoint(
    target: int, words: Words, tmp_path: Path
) -> None:
    run, place = tmp_path / "run", f"127.0.0.1:{free_port()}"
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", place, "--rdzv-id", "run")
    each = ("--nnodes", "2", "--nproc-per-node", "1", *meeting)
    long = words(run, "run.steps=500", "run.checkpoint_every=1000")
    agents = [torchrun(long, agent=each) for _ in range(2)]
    wait_for_a_step(run, agents[0])
    agents[target].send_signal(signal.SIGTERM)
    outputs = [agent.communicate(timeout=SECONDS)[0] for agent in agents]
    assert all(agent.returncode for agent in agents), outputs
    assert "".join(outputs).count("Stopped by SIGTERM after step") == 1, outputs
    assert published(run / "checkpoints")


def test_processes_whose_agent_is_killed_stop_with_a_checkpoint_and_leave_the_lock(
    words: Words, tmp_path: Path
) -> None:
    """The system sends them SIGTERM."""
    run = tmp_path / "run"
    agent = torchrun(words(run, "run.steps=500", "run.checkpoint_every=1000"))
    wait_for_a_step(run, agent)
    agent.kill()
    output, _ = agent.communicate(timeout=SECONDS)  # All have ended that could print.
    assert output.count("Stopped by SIGTERM after step") == 1
    assert published(run / "checkpoints")
    with RunDirectory.held(run):
        pass


def test_an_attempt_that_shares_a_store_does_not_read_of_the_one_before(
    words: Words, tmp_path: Path
) -> None:
    """A signal to one worker only: all stop, torchrun starts them again, and they finish."""
    run = tmp_path / "run"
    agent = torchrun(words(run, "run.steps=6"), "--max-restarts", "1", shares=True)
    wait_for_checkpoint(run, agent)
    os.kill(workers_of(agent)[1], signal.SIGTERM)
    output, _ = agent.communicate(timeout=SECONDS)
    assert agent.returncode == 0, output
    assert output.count("Stopped by SIGTERM after step") == 1
    assert "Resuming after step" in output


@pytest.mark.parametrize("also_workers", [False, True])
def test_a_signal_to_the_agent_stops_all_with_a_checkpoint(
    also_workers: bool, words: Words, tmp_path: Path
) -> None:
    """The agent hands it on, so workers that get it too hear it twice."""
    run = tmp_path / "run"
    agent = torchrun(words(run, "run.steps=500", "run.checkpoint_every=1000"))
    wait_for_a_step(run, agent)
    for pid in workers_of(agent).values() if also_workers else ():
        os.kill(pid, signal.SIGTERM)
    agent.send_signal(signal.SIGTERM)
    output, _ = agent.communicate(timeout=SECONDS)
    assert agent.returncode != 0
    assert "Stopped by SIGTERM after step" in output
    assert published(run / "checkpoints")
