"""A scoring client and a server that is away for a while, or for good."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import pytest
from serving_fixtures import Act, ChatServer, fails, says

from bas_opd.errors import PreemptionError
from bas_opd.serving import scoring
from bas_opd.serving.client import ServerError
from bas_opd.serving.scoring import Answer, ScoringClient, ScoringRequest

VOCABULARY = 100
HANGS_UP = says("nothing", keep_bytes=0)
ROWS, AT_ONCE, TRIES = 24, 8, 6
FIRST_WAIT = 0.1

Fault = Callable[[int], Act | None]
"""Of the number of a request to score; -1 is an empty one."""


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


class Scorer:
    """Scores rows of one token, as far as `fault` lets it, and notes when it was asked."""

    def __init__(
        self, fault: Fault = lambda _: None, *, seconds: float = 0.02, waits_for: int = 0
    ) -> None:
        """With `waits_for` it answers none before so many have come."""
        self.fault, self.seconds, self.waits_for = fault, seconds, waits_for
        self.arrivals: list[tuple[float, int]] = []
        """Of each request to score: when it came, and how many were there with it."""
        self.empty = 0
        self._out = 0
        self._lock = threading.Lock()

    def __call__(self, request: dict[str, Any]) -> Act:
        if not request:
            self.empty += 1
            return self.fault(-1) or fails(400, "1 validation error")
        with self._lock:
            number = len(self.arrivals)
            self._out += 1
            self.arrivals.append((time.monotonic(), self._out))
        while len(self.arrivals) < self.waits_for:
            time.sleep(0.001)
        time.sleep(self.seconds)
        with self._lock:
            self._out -= 1
        return self.fault(number) or _answer(request)


def _answer(request: dict[str, Any]) -> Act:
    token = request["token_ids"][-1]
    reply = {
        "request_id": f"generate-tokens-{request['request_id']}",
        "prompt_logprobs": [None, {token: {"logprob": -0.5}}],
    }
    return Act(body=json.dumps(reply).encode())


def score(
    scorer: Scorer,
    charged: list[int],
    *,
    rows: Iterable[int] = range(ROWS),
    retries: int = AT_ONCE,
    poll: Callable[[], None] = lambda: None,
    **settings: Any,
) -> dict[int, Answer | None]:
    """Ask about rows within a budget for repeats, and note what was charged."""
    lock, rows = threading.Lock(), list(rows)

    def ask(row: int) -> Answer | None:
        def charge() -> bool:
            with lock:
                if len(charged) >= len(rows) + retries:
                    return False
                charged.append(row)
                return True

        asked = ScoringRequest(prompt=(1,), response=(row,), image=b"", prompt_length=1, k=1)
        return client.score(asked, charge)

    with ChatServer(scorer).running() as server:
        given = {"at_once": AT_ONCE, "tries": TRIES, "first_wait_seconds": FIRST_WAIT, **settings}
        client = ScoringClient(server.endpoint(**given), vocabulary=VOCABULARY)
        return dict(client.in_parallel(ask, rows, poll=poll))


def away(after: int, seconds: float, how: Act) -> Fault:
    """A server that is away for some seconds from its n-th request on."""
    began: list[float] = []

    def fault(number: int) -> Act | None:
        if number >= after and not began:
            began.append(time.monotonic())
        is_away = bool(began) and time.monotonic() - began[0] < seconds
        return how if is_away else None

    return fault


@pytest.mark.parametrize(
    "how", [fails(429), fails(500), fails(502), fails(503), HANGS_UP], ids=lambda act: act.status
)
def test_a_server_that_is_away_for_a_while_costs_one_retry_for_each_request_that_was_out(
    how: Act,
) -> None:
    """With the proportions of the default settings; it is away for five first waits."""
    scorer, charged = Scorer(away(5, 5 * FIRST_WAIT, how)), list[int]()
    answers = score(scorer, charged)
    assert sorted(answers) == list(range(ROWS))
    assert all(answers.values()), "A row was left without an answer."
    assert ROWS < len(charged) <= ROWS + AT_ONCE
    assert len(scorer.arrivals) == len(charged)
    assert scorer.empty >= 1


def test_a_server_that_stays_away_stops_after_its_tries_and_costs_what_was_out() -> None:
    scorer, charged = Scorer(away(5, 600, fails(503))), list[int]()
    with pytest.raises(ServerError, match=r"failed 6 times in a row; the last time it answered wi"):
        score(scorer, charged, first_wait_seconds=0.02)
    assert len(charged) <= 5 + AT_ONCE
    assert scorer.empty == TRIES - 1


def test_a_server_that_fails_only_real_requests_gets_one_in_each_round() -> None:
    scorer = Scorer(lambda number: None if number < 0 else fails(503), waits_for=AT_ONCE)
    charged = list[int]()
    with pytest.raises(ServerError, match="failed 6 times in a row"):
        score(scorer, charged)
    assert len(charged) == len(scorer.arrivals) == AT_ONCE + TRIES - 1
    times = [at for at, _ in scorer.arrivals[AT_ONCE - 1 :]]
    for number, (before, after) in enumerate(pairwise(times)):
        assert after - before >= FIRST_WAIT * 2**number / 2


def test_a_server_that_answers_only_empty_requests_is_given_up_after_some_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each round takes a whole time-out."""
    monkeypatch.setattr(scoring, "AWAY_SECONDS", 0.5)
    stalls = says("nothing", wait_seconds=30)
    scorer, charged = Scorer(lambda number: None if number < 0 else stalls), list[int]()
    with pytest.raises(ServerError, match=r"failed [23] times in a row"):
        score(scorer, charged, timeout_seconds=0.3)
    assert len(charged) <= AT_ONCE + 2


def test_after_a_failure_one_request_goes_first_and_others_follow_one_by_one() -> None:
    scorer = Scorer(seconds=0.1, waits_for=AT_ONCE)
    scorer.fault = lambda number: fails(503) if 0 <= number < AT_ONCE else None
    assert all(score(scorer, [], first_wait_seconds=0.6).values())
    together = [out for _, out in scorer.arrivals[AT_ONCE:]]
    # With each answer one more may be out: of n that came, at most n / 2 + 1 are there.
    assert all(2 * out <= number + 2 for number, out in enumerate(together))
    assert max(together) > 2, "They never go together again."


def test_a_wait_that_the_server_asks_for_holds_all_requests() -> None:
    scorer, charged = Scorer(), list[int]()
    scorer.fault = lambda number: fails(429, Retry_After="0.6") if number == 3 else None
    assert all(score(scorer, charged).values())
    times = [at for at, _ in scorer.arrivals]
    assert max(after - before for before, after in pairwise(times)) >= 0.5
    assert len(charged) == ROWS + 1


def test_a_stop_ends_the_wait_for_a_server_that_is_away() -> None:
    scorer, charged = Scorer(away(0, 600, fails(503))), list[int]()

    def poll() -> None:
        if scorer.arrivals:
            raise PreemptionError("SIGTERM")

    started = time.monotonic()
    with pytest.raises(PreemptionError):
        score(scorer, charged, poll=poll, first_wait_seconds=60)
    assert time.monotonic() - started < 5
    assert len(charged) <= AT_ONCE
