"""The store in which the processes of a run meet: what they tell each other without a group.

It is there before they can exchange tensors, and still there when one of them has failed. The
process that fails first leaves its sentence and exit code; all the others end with these.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from bas_opd.compute.explaining import explanation, is_explained
from bas_opd.errors import BasOpdError, FailedRank, RankError, Unanswered

T = TypeVar("T")
PATIENCE_SECONDS = 10
"""How long a process that ends waits for what others have to say or to read."""
LISTEN_SECONDS = 0.25
"""How often a process asks whether another has failed."""
FAILURE, LEADER, ALL_AGREE, SAID = "failure", "leader", "all agree", "said"
"""Keys: the first failure, what the leader depends on, that all do so, that the leader said why."""


class Failure(NamedTuple):
    """How the process that failed first ends."""

    rank: int
    host: str
    sentence: str
    code: int


class Rendezvous:
    """One process at the meeting place of its run.

    The process that keeps the store may end or hang. So a thread hears of a failure while this
    process works, and nothing waits for the store without a limit.
    """

    def __init__(self, rank: int, size: int, *, timeout_minutes: float) -> None:
        self.rank, self.size, self.timeout_minutes = rank, size, timeout_minutes
        self._failure: Failure | None = None
        self._is_said, self._is_closed = threading.Event(), threading.Event()
        timeout = timedelta(minutes=timeout_minutes)
        try:
            self.store = within(60 * timeout_minutes, lambda: _open(rank, timeout))
        except (RuntimeError, ValueError) as error:
            raise not_reached(rank, size, timeout_minutes, error) from error
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        # A thread that came back from the store while Python ends would abort the process.
        atexit.register(self.close)

    def close(self) -> None:
        """Stop listening."""
        self._is_closed.set()
        self._listener.join(timeout=1)  # It may wait for a store that hangs.
        atexit.unregister(self.close)

    def agree(self, facts: Mapping[str, Any], check: Callable[[Mapping[str, Any]], None]) -> None:
        """Return once all are here and have checked the leader's facts; an error is one of all."""

        def compare() -> None:
            if self.rank == 0:
                self.store.set(LEADER, json.dumps(facts))
            self._wait_for(LEADER)
            check(json.loads(self.store.get(LEADER)))
            if self.store.add("agreeing", 1) == self.size:
                self.store.set(ALL_AGREE, "")
            self._wait_for(ALL_AGREE)

        try:
            within(60 * self.timeout_minutes, compare)
        except RuntimeError as error:
            if isinstance(error, BasOpdError):
                raise
            raise not_reached(self.rank, self.size, self.timeout_minutes, error) from error

    def _wait_for(self, key: str) -> None:
        self.store.wait([key])
        if failure := self._read_failure():
            raise self._adopted(failure)

    def settle(self, error: Exception) -> BasOpdError:
        """Return what this process ends with: its error, or that of the one that failed first."""
        own = error if isinstance(error, BasOpdError) else failed(self.rank, error)
        if own.rendezvous is not None:
            return own
        heard_of = isinstance(own, FailedRank) and own.rank != self.rank
        failure = None
        if heard_of or not own.is_told:
            try:
                limit = 2 * PATIENCE_SECONDS
                failure = within(limit, lambda: self._first_failure(own, heard_of=heard_of))
            except RuntimeError:  # The store has gone with the process that kept it, or hangs.
                failure = self._failure
                if failure is None:
                    return own
            if failure is None and isinstance(own, Unanswered):
                return own
        if failure is not None and failure.sentence != str(own):
            return self._adopted(failure)
        own.rendezvous = self
        return own

    def say(self, say: Callable[[], None]) -> None:
        """Let the leader say why all end, and end no process before."""
        if self.rank == 0:
            say()
            with suppress(RuntimeError):  # The store may have ended with the launcher.
                within(2 * PATIENCE_SECONDS, self._tell_that_it_is_said)
        elif not self._is_said.wait(PATIENCE_SECONDS):
            say()
        self.close()

    def _tell_that_it_is_said(self) -> None:
        self.store.set(SAID, "")
        self._has_soon(*(f"heard {rank}" for rank in range(1, self.size)))

    def _listen(self) -> None:
        """Hear of the first failure, and that the leader has said why all end."""
        with suppress(RuntimeError):  # The store has ended.
            while not self._is_closed.wait(LISTEN_SECONDS):
                self._failure = self._failure or self._read_failure()
                if self.store.check([SAID]):
                    self.store.set(f"heard {self.rank}", "")
                    self._is_said.set()
                    return

    def _first_failure(self, own: BasOpdError, *, heard_of: bool) -> Failure | None:
        """Return the failure on record; unless others have failed, put this one there."""
        if heard_of:
            self._has_soon(FAILURE)
        elif not isinstance(own, Unanswered):
            failure = Failure(self.rank, socket.gethostname(), str(own), own.exit_code)
            self.store.compare_set(FAILURE, "", json.dumps(failure))
            for key in (LEADER, ALL_AGREE):  # Who waits for these reads of the failure.
                self.store.compare_set(key, "", "failed")
        return self._read_failure()

    def _read_failure(self) -> Failure | None:
        if not self.store.check([FAILURE]):
            return None
        return Failure(*json.loads(self.store.get(FAILURE)))

    def _adopted(self, failure: Failure) -> BasOpdError:
        error = RankError(placed(failure.sentence, failure.rank, failure.host))
        error.exit_code = failure.code
        error.rendezvous = self
        return error

    def _has_soon(self, *keys: str) -> bool:
        """Return whether the store has all keys within a few seconds."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.store.check(list(keys)):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def within(seconds: float, act: Callable[[], T]) -> T:
    """Return what an act on the store returns; raise a RuntimeError if it takes longer."""
    done = Future[T]()

    def work() -> None:
        try:
            done.set_result(act())
        except Exception as error:
            done.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        return done.result(seconds)
    except TimeoutError:
        raise RuntimeError("The store of the launcher timed out") from None


def not_reached(rank: int, size: int, minutes: float, error: Exception) -> RankError:
    """Return the sentence about processes that did not come."""
    reason = str(error).partition("\n")[0].rstrip(".")
    limit = f" within {minutes:g} minutes" if "timed out" in reason or "timeout" in reason else ""
    return RankError(
        f"Rank {rank} of {size} on {socket.gethostname()} did not reach the others{limit} "
        f"({reason}). Check that all of them were started, and that "
        f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} can be reached."
    )


def placed(sentence: str, rank: int, host: str) -> str:
    """Return a sentence of a process with its rank and machine."""
    place = f"Rank {rank} on {host}"
    is_placed = sentence.startswith((place, f"Rank {rank} of "))
    return sentence if is_placed else f"{place}: {sentence}"


def failed(rank: int, error: Exception) -> FailedRank:
    """Return the sentence about an error that is not one of ours, with its exit code."""
    what, code = f"{type(error).__name__}: {error}", FailedRank.exit_code
    if is_explained(error):
        what, code = explanation(error), 1  # as in one process
    found = FailedRank(f"Rank {rank} on {socket.gethostname()} failed: {what}")
    found.rank, found.exit_code = rank, code
    return found


def _open(rank: int, timeout: timedelta) -> Any:
    """Open the store that the launcher names: torchrun's agent keeps it, else the leader does."""
    dist: Any = importlib.import_module("torch.distributed")
    is_kept = is_kept_by_agent()
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=rank == 0 and not is_kept,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=not is_kept,
    )
    # A store of the agent outlives a restart, and has the notes of the attempt before.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if is_kept else "0"
    return dist.PrefixStore(f"attempt {attempt}", store)


def is_kept_by_agent() -> bool:
    """Return whether torchrun's agent keeps the store."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
