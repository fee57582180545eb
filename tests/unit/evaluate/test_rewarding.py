"""The judge of rewards: its limit covers what fails, and a judge that is gone is not silent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from serving_fixtures import ChatServer, fails, in_turn, says

from bas_opd.errors import PreemptionError
from bas_opd.evaluate.judge import MOST_UNSCORED_IN_A_ROW
from bas_opd.evaluate.rewarding import RewardJudge
from bas_opd.methods.reward import Unread
from bas_opd.serving.client import AccessError


def step(number: int, rows: int = 4) -> Sequence[Unread]:
    """Responses of one step that no rule could read; no two are equal."""
    return [
        Unread(question="Which?", reference="red", response=f"{number} {row}")
        for row in range(rows)
    ]


def test_requests_that_fail_count_toward_the_limit_of_the_whole_run(tmp_path: Path) -> None:
    with ChatServer(lambda request: fails(503)).running() as server:
        judge = RewardJudge(server.endpoint(tries=2), tmp_path / "verdicts", max_requests=5)
        for number in range(3):
            assert judge(step(number, rows=2)) == ["unread"] * 2
        assert len(server.requests) == 5


def test_a_judge_that_is_gone_ends_the_run_although_no_step_asks_often(tmp_path: Path) -> None:
    with ChatServer(in_turn(*["Yes"] * 4, fails(503))).running() as server:
        judge = RewardJudge(server.endpoint(tries=1), tmp_path / "verdicts", max_requests=1000)
        assert judge(step(0)) == ["right"] * 4
        for number in range(1, MOST_UNSCORED_IN_A_ROW // 4):
            assert judge(step(number)) == ["unread"] * 4
        with pytest.raises(AccessError, match="gave no verdict on 20 answers in a row"):
            judge(step(99))


def test_a_request_to_stop_ends_the_asking(tmp_path: Path) -> None:
    def stop() -> None:
        raise PreemptionError("stop")

    with ChatServer(lambda request: says("Yes")).running() as server:
        judge = RewardJudge(server.endpoint(), tmp_path / "verdicts", max_requests=9)
        with pytest.raises(PreemptionError):
            judge(step(0), stop)
        assert server.requests == []


def test_a_stop_does_not_wait_for_a_judge_that_stalls(tmp_path: Path) -> None:
    with ChatServer(lambda request: says("Yes", wait_seconds=30)).running() as server:

        def stop() -> None:
            if server.requests:
                raise PreemptionError("stop")

        endpoint = server.endpoint(timeout_seconds=25, stop_seconds=0.2)
        judge = RewardJudge(endpoint, tmp_path / "verdicts", max_requests=9)
        started = time.monotonic()
        with pytest.raises(PreemptionError):
            judge(step(0), stop)
        assert time.monotonic() - started < 10


def test_a_resumed_run_counts_the_replies_on_disk(tmp_path: Path) -> None:
    with ChatServer(lambda request: says("No")).running() as server:
        for number in range(2):
            judge = RewardJudge(server.endpoint(), tmp_path / "verdicts", max_requests=6)
            judge(step(number))
        assert len(server.requests) == 6
