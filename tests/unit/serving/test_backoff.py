"""How many requests are out at once after a server has failed."""

from __future__ import annotations

import random

from bas_opd.serving.backoff import SharedBackoff, Turn

AT_ONCE = 8


def begun(backoff: SharedBackoff) -> list[Turn]:
    """Begin as many requests as may be out."""

    class NoRoom(Exception):  # noqa: N818
        pass

    turns: list[Turn] = []

    def check() -> None:
        if len(turns) >= backoff._room:
            raise NoRoom

    while True:
        try:
            turns.append(backoff.begin(check))
        except NoRoom:
            return turns


def failures(backoff: SharedBackoff, *, limit: int, waves: int) -> int:
    """Send waves to a server that refuses all of one with more requests than its limit."""
    failed = 0
    for _ in range(waves):
        turns = begun(backoff)
        refuses = len(turns) > limit
        failed += refuses
        for turn in turns:
            if refuses:
                backoff.failed(turn, lambda _: 0.0, at_least=0.0, is_too_many=True)
            else:
                backoff.succeeded(turn)
            backoff.end(turn)
    return failed


def test_a_server_that_limits_the_requests_at_once_is_seldom_asked_for_more() -> None:
    backoff = SharedBackoff(AT_ONCE)
    failures(backoff, limit=4, waves=40)  # from 8 down to 4
    assert failures(backoff, limit=4, waves=100) <= 2 * 400 // 64  # of about 400 requests
    assert len(begun(backoff)) >= 3


def test_once_it_allows_more_all_may_be_out_again() -> None:
    backoff = SharedBackoff(AT_ONCE)
    failures(backoff, limit=1, waves=40)
    assert failures(backoff, limit=AT_ONCE, waves=400) == 0
    assert len(begun(backoff)) == AT_ONCE


def test_failures_of_one_moment_lower_the_limit_once() -> None:
    backoff = SharedBackoff(AT_ONCE)
    turns = begun(backoff)
    for turn in turns:
        backoff.failed(turn, lambda _: 0.0, at_least=0.0, is_too_many=True)
        backoff.end(turn)
    assert backoff.failed_rounds == 1
    (probe,) = begun(backoff)
    backoff.failed(probe, lambda _: 0.0, at_least=0.0)
    backoff.end(probe)
    (first,) = begun(backoff)
    for _ in range(AT_ONCE):
        backoff.succeeded(first)
    backoff.end(first)
    assert len(begun(backoff)) == AT_ONCE - 1


def test_failures_that_have_other_reasons_do_not_lower_the_limit() -> None:
    """One of 50 fails, whatever the number that is out: each costs a ramp from one to all."""
    backoff, draw = SharedBackoff(AT_ONCE), random.Random(0)
    out, times = list[Turn](), 0.0
    for _ in range(5000):
        out += begun_beside(backoff, out)
        times += 1 / len(out)
        turn = out.pop(draw.randrange(len(out)))
        if draw.random() < 0.02:
            backoff.failed(turn, lambda _: 0.0, at_least=0.0)
        else:
            backoff.succeeded(turn)
        backoff.end(turn)
    assert 5000 / times > 0.7 * AT_ONCE


def begun_beside(backoff: SharedBackoff, out: list[Turn]) -> list[Turn]:
    """Begin as many requests as may be out beside those of this and earlier rounds."""
    current = sum(turn.round == backoff._round for turn in out)
    return [backoff.begin(lambda: None) for _ in range(backoff._room - current)]
