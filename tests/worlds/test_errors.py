"""Wherever one process fails, all end at once with its sentence and its exit code."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from process import Fault, ask_to_stop, at, die, fail
from ranks import SECONDS, Ended, Start, Train, Words, train_in_world

from bas_opd.cli import main
from bas_opd.compute import rendezvous
from bas_opd.data.order import PromptStream
from bas_opd.errors import DataError
from bas_opd.learn import Learner
from bas_opd.model.weights import ShadowWeights
from bas_opd.rollout import Sampler
from bas_opd.run import checkpoint, loop, state, steps
from bas_opd.run.manifest import published
from bas_opd.run.state import TrainState

LONG = "shard.timeout_minutes=9"
"""Longer than a test may wait."""
BROKEN = fail(TypeError("It is broken."))
FULL = fail(MemoryError("The memory of one process is full."))


def armed(rank: int, fault: Fault) -> Any:
    return lambda number: fault() if number == rank else None


def assert_one_end(ended: list[Ended], code: int, sentence: str) -> None:
    """All ended with a code; the leader alone says why."""
    assert [each.code for each in ended] == [code] * len(ended), ended
    assert sentence in " ".join(ended[0].output.split()), ended[0].output
    for each in ended:
        says = any(line.startswith("bas-opd") for line in each.output.splitlines())
        assert says == (each is ended[0]), each
        assert "in vain" not in each.output, each
        assert "GLHF" not in each.output, each


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("owner", "name", "act", "code"),
    [
        (loop, "identity_of", BROKEN, 70),
        (loop, "model_identity", BROKEN, 70),
        (state, "open_model", BROKEN, 70),
        (PromptStream, "begin", BROKEN, 70),
        (steps, "step_event", BROKEN, 70),
        (Sampler, "_draw", BROKEN, 70),
        (loop, "check_run", fail(DataError("It is broken.")), 1),
        (Learner, "_clip", FULL, 1),
        (torch.optim.AdamW, "step", FULL, 1),
        (ShadowWeights, "follow", FULL, 1),
        (TrainState, "capture", FULL, 1),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_fails_on_one_rank_ends_all_alike(
    rank: int, owner: Any, name: str, act: Any, code: int, train: Train, tmp_path: Path
) -> None:
    fault = armed(rank, at(owner, name, act, call=1, before=True))
    ended = train(2, tmp_path / "run", LONG, fault=fault)
    sentence = "It is broken." if act is not FULL else "The memory of one process is full."
    assert_one_end(ended, code, sentence)
    assert ("Traceback" in ended[rank].output) == (act is BROKEN)
    assert "Traceback" not in ended[1 - rank].output
    if rank:
        assert "bas-opd: Rank 1 on " in ended[0].output


def test_who_is_killed_leaves_no_sentence(train: Train, tmp_path: Path) -> None:
    fault = armed(1, at(Sampler, "_draw", die, call=2))
    leader, other = train(2, tmp_path / "run", LONG, fault=fault)
    assert (leader.code, other.code) == (70, -signal.SIGKILL)
    said = " ".join(leader.output.split())
    assert "Rank 0 waited for the others in vain: one has ended without a word" in said
    assert "GLHF" not in said


def test_the_leader_has_said_why_before_another_rank_ends(start: Start, tmp_path: Path) -> None:
    def slow() -> None:
        patch: Any = main
        say = main._say
        patch._say = lambda error: (time.sleep(1), say(error))

    lost = str(tmp_path / "nowhere")
    ranks = start(2, tmp_path / "run", LONG, f"data.path={lost}", fault=armed(0, slow))
    ranks.processes[1].join()
    assert "nowhere" in ranks.output(0).partition("bas-opd: ")[2]
    assert_one_end(ranks.wait(), 1, "nowhere")


def patient(seconds: float) -> Fault:
    """Let a process wait so long for others when it ends."""

    def arm() -> None:
        patch: Any = rendezvous
        patch.PATIENCE_SECONDS = seconds

    return arm


def test_a_leader_that_ends_without_a_word_is_not_waited_for(train: Train, tmp_path: Path) -> None:
    def silent() -> None:
        patch: Any = rendezvous.Rendezvous
        patch.say = lambda *_: None

    lost = f"data.path={tmp_path / 'nowhere'}"
    ended = train(2, tmp_path / "run", LONG, lost, fault=armed(0, silent))
    assert [each.code for each in ended] == [1, 1], ended
    assert "bas-opd (rank 1): " in ended[1].output
    assert "nowhere" in ended[1].output


def test_a_leader_that_hangs_before_it_says_why_is_not_waited_for_long(
    start: Start, tmp_path: Path
) -> None:
    def fault(rank: int) -> None:
        patient(0.2)()
        patch: Any = main
        armed(0, lambda: setattr(patch, "_say", lambda _: time.sleep(SECONDS)))(rank)

    lost = f"data.path={tmp_path / 'nowhere'}"
    ranks = start(2, tmp_path / "run", LONG, lost, fault=fault)
    leader, other = ranks.processes
    other.join(SECONDS / 2)
    assert other.exitcode == 1
    assert leader.is_alive()
    leader.kill()
    assert "bas-opd (rank 1): " in ranks.output(1)
    assert "nowhere" in ranks.output(1)


@pytest.mark.parametrize("leads", [True, False])
def test_a_process_that_hangs_is_not_waited_for_long(
    leads: bool, start: Start, tmp_path: Path
) -> None:
    """It is stopped in a step, and with the leader the store."""
    hung, other = (0, 1) if leads else (1, 0)

    def fault(rank: int) -> None:
        patient(1)()
        armed(hung, at(Sampler, "_draw", lambda: ask_to_stop(signal.SIGSTOP), call=2))(rank)

    ranks = start(2, tmp_path / "run", "shard.timeout_minutes=0.1", fault=fault)
    ranks.processes[other].join(SECONDS / 2)
    ranks.processes[hung].kill()
    assert ranks.processes[other].exitcode == 70, ranks.output(other)
    assert f"Rank {other} waited for the others in vain" in ranks.output(other)


def test_who_computes_for_long_hears_why_the_leader_has_ended(train: Train, tmp_path: Path) -> None:
    """The leader keeps the store, and waits until all have heard; the other is asleep meanwhile."""

    def fault(rank: int) -> None:
        patient(1)()
        act = fail(DataError("It is broken.")) if rank == 0 else lambda: time.sleep(5)
        at(Sampler, "_draw", act, call=2, before=True)()

    assert_one_end(train(2, tmp_path / "run", LONG, fault=fault), 1, "It is broken.")


def test_with_debug_all_end_alike_too(words: Words, tmp_path: Path) -> None:
    broken = armed(1, at(Sampler, "_draw", fail(DataError("It is broken.")), call=2))
    ended = train_in_world(2, ["--debug", *words(tmp_path / "run", LONG)], broken).wait()
    assert_one_end(ended, 1, "It is broken.")
    assert all("Traceback" in each.output for each in ended)


def repeated(first: signal.Signals, second: signal.Signals) -> Fault:
    """Let a process get two signals while its first checkpoint is written."""

    def both() -> None:
        for number in (first, second):
            ask_to_stop(number)
            time.sleep(0.3)  # The main thread hears of it.

    return at(checkpoint, "save_file", both, call=1, before=True)


def test_a_second_sigterm_does_not_cut_off_the_checkpoint(train: Train, tmp_path: Path) -> None:
    twice = repeated(signal.SIGTERM, signal.SIGTERM)
    ended = train(2, tmp_path / "run", LONG, fault=lambda _: twice())
    assert_one_end(ended, 75, "Stopped by SIGTERM after step")
    assert published(tmp_path / "run" / "checkpoints")


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_ctrl_c_ends_a_process_at_once(
    second: signal.Signals, train: Train, tmp_path: Path
) -> None:
    """For the second one torchrun sends SIGTERM."""
    twice = repeated(signal.SIGINT, second)
    ended = train(2, tmp_path / "run", LONG, fault=lambda _: twice())
    assert [each.code for each in ended] == [75, 75], ended
    assert not published(tmp_path / "run" / "checkpoints")


def test_a_sentence_has_its_rank_once() -> None:
    told = dict.fromkeys(("MASTER_ADDR", "MASTER_PORT"), "1")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in told.items():
            patch.setenv(name, value)
        absent = str(rendezvous.not_reached(1, 2, 3, RuntimeError("wait timeout after 1ms")))
        refused = str(rendezvous.not_reached(1, 2, 3, RuntimeError("No device found.\nMore")))
    assert rendezvous.placed(absent, 1, "here") == absent
    assert rendezvous.placed("It is.", 1, "here") == "Rank 1 on here: It is."
    assert "did not reach the others within 3 minutes (wait timeout after 1ms)." in absent
    assert "did not reach the others (No device found)." in refused
