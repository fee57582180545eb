"""Wherever one process fails, all end at once with its sentence and its exit code."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from process import Fault, at, die, fail
from ranks import Ended, Train

from bas_opd.data.order import PromptStream
from bas_opd.errors import DataError
from bas_opd.learn import Learner
from bas_opd.model.weights import ShadowWeights
from bas_opd.rollout import Sampler
from bas_opd.run import checkpoint, loop, state, steps
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
        assert ("bas-opd" in each.output) == (each is ended[0]), each
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


def test_a_full_disk_of_one_rank_has_one_exit_code(train: Train, tmp_path: Path) -> None:
    full = fail(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a file"))
    fault = armed(1, at(checkpoint, "save_file", full, call=1))
    ended = train(2, tmp_path / "run", LONG, fault=fault)
    assert_one_end(ended, 1, "a file: No space left on device. Free some space")
    assert "bas-opd: Rank 1 on " in ended[0].output


def test_who_is_killed_leaves_no_sentence(train: Train, tmp_path: Path) -> None:
    fault = armed(1, at(Sampler, "_draw", die, call=2))
    leader, other = train(2, tmp_path / "run", LONG, fault=fault)
    assert (leader.code, other.code) == (70, -signal.SIGKILL)
    said = " ".join(leader.output.split())
    assert "Rank 0 waited for the others in vain: one has ended without a word" in said
    assert "GLHF" not in said
