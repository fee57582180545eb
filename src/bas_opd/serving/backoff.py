"""Waits that all requests to one server share.

If each request waited for itself, those that are out at once would all fail again at once, and a
server that is away for a second would cost as many retries as there are requests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

_POLL_SECONDS = 0.2
_CALM = 64
"""Requests that succeed in a row before more may be out than when they last were too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A place among the requests that are out."""

    round: int
    is_probe: bool
    """Whether the server has not been heard since the last failure."""


class SharedBackoff:
    """Decides when a request may be sent; safe to share between threads.

    A failure ends a round, and nothing is sent until a wait is over. Then one request goes first,
    and with each that succeeds one more may be out at once. After a refusal because they are too
    many, one less may be than when it came; that limit is raised slowly. A request of an earlier
    round that fails later says nothing new: the failures of one moment are one failed round.
    """

    def __init__(self, at_once: int) -> None:
        self.failed_rounds = 0
        """In a row."""
        self._since = 0.0
        self._at_once = self._most = self._room = at_once
        self._calm = 0
        self._round = self._out = 0
        self._is_heard = True
        self._until = 0.0
        self._changed = threading.Condition()

    @property
    def seconds_away(self) -> float:
        """How long the first of several failed rounds in a row is past; 0 after one or none."""
        return time.monotonic() - self._since if self.failed_rounds > 1 else 0.0

    def begin(self, check: Callable[[], None]) -> Turn:
        """Wait until a request may be sent; `check` raises if none is to be sent any more."""
        with self._changed:
            while True:
                check()
                left = self._until - time.monotonic()
                if left <= 0 and self._out < self._room:
                    self._out += 1
                    return Turn(round=self._round, is_probe=not self._is_heard)
                self._changed.wait(min(left, _POLL_SECONDS) if left > 0 else _POLL_SECONDS)

    def end(self, turn: Turn) -> None:
        """Give up a place, whether its request was sent or not."""
        with self._changed:
            if turn.round == self._round:
                self._out -= 1
            self._changed.notify_all()

    def heard(self, turn: Turn) -> None:
        """Note that the server is there, so that this is not asked again in this round."""
        with self._changed:
            self._is_heard |= turn.round == self._round

    def succeeded(self, turn: Turn) -> None:
        """Note a request that was answered."""
        with self._changed:
            if turn.round == self._round:
                self.failed_rounds = 0
                self._calm += 1
                if self._calm == _CALM:
                    more = max(1, self._most // 2)
                    self._calm, self._most = 0, min(self._at_once, self._most + more)
                self._room = min(self._most, self._room + 1)

    def failed(
        self,
        turn: Turn,
        seconds: Callable[[int], float],
        *,
        at_least: float,
        is_too_many: bool = False,
    ) -> None:
        """Note a failure, which may be that there are too many requests, and hold all of them.

        `seconds` are to be waited after a number of failed rounds in a row. `at_least` is what the
        server asks for, also in the reply to a request of an earlier round.
        """
        with self._changed:
            wait = at_least
            if turn.round == self._round:
                self._calm = 0
                if is_too_many:
                    self._most = max(1, self._room - 1)
                self._round, self._out, self._room = self._round + 1, 0, 1
                self._is_heard = False
                self.failed_rounds += 1
                if self.failed_rounds == 1:
                    self._since = time.monotonic()
                wait = max(wait, seconds(self.failed_rounds))
            if wait:
                self._until = max(self._until, time.monotonic() + wait)
