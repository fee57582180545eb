"""Clients of served models, with retries, and of chat completions, with a spending limit.

Every chat request asks for temperature 0; if a model rejects that, the reply says so.
"""

from __future__ import annotations

import json
import math
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar

from bas_opd.errors import BasOpdError
from bas_opd.serving.endpoint import Deadline, Endpoint, Reply, RequestFailure, open_http, post
from bas_opd.text import counted

Message = Mapping[str, Any]
Item = TypeVar("Item")
Result = TypeVar("Result")

_REPLACED_BY = {"temperature": None, "max_tokens": "max_completion_tokens", "seed": None}
"""Parameters that some models reject, and what they want instead."""
_NO_ACCESS = (301, 302, 303, 307, 308, 401, 402, 403, 404, 405)
_POLL_SECONDS = 0.2


class ServerError(BasOpdError, ConnectionError):
    """A server gave no usable reply to one request, after all retries."""


class AccessError(ServerError):
    """A server answers no request with this address, key or model."""


class RefusedError(ServerError):
    """A server rejects this request; others may succeed."""


class SpendingLimitError(ServerError):
    """The spending limit is reached."""


@dataclass(kw_only=True)
class Spending:
    """Counts requests and tokens, and refuses requests above a limit.

    Requests are counted when they are sent, so the limit also covers those that fail. Tokens are
    counted when replies arrive, so requests in flight at that moment may exceed the limit.
    """

    max_requests: int | None = None
    max_tokens: int | None = None
    requests: int = 0
    tokens: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def reserve(self) -> None:
        """Count one request, or raise if the limit is reached."""
        with self._lock:
            for spent, limit, what in (
                (self.requests, self.max_requests, "requests"),
                (self.tokens, self.max_tokens, "tokens"),
            ):
                if limit is not None and spent >= limit:
                    raise SpendingLimitError(
                        f"The limit of {limit:,} {what} is reached, earlier commands included. "
                        "Run the same command with a higher limit to continue."
                    )
            self.requests += 1

    def add(self, *, requests: int = 0, tokens: int = 0) -> None:
        """Count tokens of a reply, or what earlier commands spent: the limit covers all of it."""
        with self._lock:
            self.requests += requests
            self.tokens += tokens


class ServerClient:
    """Sends requests to one endpoint; safe to share between threads."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._deadline = Deadline()
        self._http = open_http(endpoint, self._deadline)
        self._close = weakref.finalize(self, self._http.close)
        self._stopping = threading.Event()

    def in_parallel(
        self,
        work: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        poll: Callable[[], None] = lambda: None,
    ) -> Iterator[tuple[int, Result]]:
        """Run work that sends requests, `at_once` items in parallel; yield (index, result).

        Ctrl-C, an error raised by `poll` or a failure of the work stops new requests. Requests in
        flight may be billed already, so their results are yielded before the error is raised. After
        a failure all of them are waited for; after Ctrl-C or an error of `poll`, those that end
        within the endpoint's `stop_seconds`. A second signal stops the program without waiting.
        One such iteration at a time.
        """
        left = enumerate(items)
        running: dict[Future[Result], int] = {}
        reason: BaseException | None = None
        is_asked_to_stop = False
        pool = ThreadPoolExecutor(self.endpoint.at_once, thread_name_prefix="request")
        try:
            while True:
                try:
                    if not is_asked_to_stop:
                        poll()
                    if reason is None:
                        for place, item in islice(left, self.endpoint.at_once - len(running)):
                            running[pool.submit(work, item)] = place
                    done = wait(running, _POLL_SECONDS, FIRST_COMPLETED).done
                except BaseException as error:
                    if is_asked_to_stop:
                        raise
                    reason, is_asked_to_stop, done = reason or error, True, set()
                    self._stopping.set()
                    if self.endpoint.stop_seconds is not None:
                        self._deadline.at = time.monotonic() + self.endpoint.stop_seconds
                for future in done:
                    place = running.pop(future)
                    failure = future.exception()
                    if failure is None:
                        yield place, future.result()
                    elif reason is None:
                        reason = failure
                        self._stopping.set()
                if not running and (reason is not None or not done):
                    break
        finally:
            self._stopping.set()
            pool.shutdown()
            self._stopping.clear()
            self._deadline.at = math.inf
        if reason is not None:
            raise reason

    def _check_stopping(self) -> None:
        """Raise if no request is to be sent any more."""
        if self._stopping.is_set():
            raise CancelledError("The request was not sent, because the program is stopping.")

    def _check_retry(self, failure: RequestFailure, tries: int) -> None:
        """Raise if a request that has failed so often is not to be sent again."""
        end = self.endpoint
        if failure.status in _NO_ACCESS:
            raise AccessError(
                f"{end.url} {failure}. Check the address, the model's name ({end.model}) and the "
                "key, and run the same command again."
            )
        if not failure.is_temporary:
            raise RefusedError(f"{end.url} rejected one request: it {failure}.")
        if tries >= end.tries or failure.retry_after > end.longest_wait_seconds:
            raise ServerError(
                f"{end.url} gave no usable reply in {counted(tries, 'try', 'tries')}; the last "
                f"time it {failure}. "
                "Check that the server is up and run the same command again."
            )

    def _seconds_after(self, failure: RequestFailure, failures: int) -> float:
        """Return how long to wait after so many failures in a row, of which this is the last."""
        end = self.endpoint
        longest = min(end.longest_wait_seconds, end.first_wait_seconds * 2 ** (failures - 1))
        return max(failure.retry_after, random.uniform(longest / 2, longest))


class ChatClient(ServerClient):
    """Sends chat requests."""

    def __init__(self, endpoint: Endpoint, *, spending: Spending | None = None) -> None:
        super().__init__(endpoint)
        self.spending = spending or Spending()
        self._rejected: frozenset[str] = frozenset()

    def ask(
        self, messages: Sequence[Message], *, max_tokens: int, seed: int | None = None
    ) -> Reply:
        """Return the reply to one conversation; temporary failures are retried."""
        wanted = {"temperature": 0, "max_tokens": max_tokens}
        if seed is not None:
            wanted["seed"] = seed
        asked = {**self.endpoint.extra, "model": self.endpoint.model, "messages": list(messages)}
        rejected, tries = self._rejected, 1
        while True:
            self._check_stopping()
            self.spending.reserve()
            decoding = _without(wanted, rejected)
            body = json.dumps({**asked, **decoding}).encode("ascii")
            try:
                reply = post(self._http, self.endpoint, body)
            except RequestFailure as failure:
                name = failure.parameter
                if failure.status in (400, 422) and name in decoding and name in _REPLACED_BY:
                    # Remembered, so that later requests leave it out at once.
                    rejected |= {name}
                    self._rejected |= rejected
                else:
                    self._check_retry(failure, tries)
                    self._stopping.wait(self._seconds_after(failure, tries))
                    tries += 1
                continue
            self.spending.add(tokens=reply.tokens)
            return replace(reply, fallbacks=tuple(map(_fallback, sorted(rejected))))


def _fallback(name: str) -> str:
    instead = _REPLACED_BY[name]
    return f"sent {instead} in place of {name}" if instead else f"sent without {name}"


def _without(wanted: Mapping[str, Any], rejected: frozenset[str]) -> dict[str, Any]:
    names = {name: _REPLACED_BY[name] if name in rejected else name for name in wanted}
    return {name: wanted[old] for old, name in names.items() if name is not None}
