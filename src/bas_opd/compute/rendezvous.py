"""The store in which the processes of a run meet: what they tell each other without a group.

It is there before they can exchange tensors, and still there when one of them has failed. The
process that fails first leaves its sentence and exit code; all the others end with these.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

from bas_opd.errors import BasOpdError, FailedRank, RankError, Unanswered, explain_failure

PATIENCE_SECONDS = 10
"""How long a process that ends waits for what others have to say or to read."""
FAILURE, LEADER, ALL_AGREE, SAID = "failure", "leader", "all agree", "said"
"""Keys: the first failure, what the leader depends on, that all do so, that the leader said why."""


class Failure(NamedTuple):
    """How the process that failed first ends."""

    rank: int
    host: str
    sentence: str
    code: int


class Rendezvous:
    """One process at the meeting place of its run."""

    def __init__(self, rank: int, size: int, *, timeout_minutes: float) -> None:
        self.rank, self.size, self.timeout_minutes = rank, size, timeout_minutes
        self.timeout = timedelta(minutes=timeout_minutes)
        try:
            self.store = _open(rank, self.timeout)
        except (RuntimeError, ValueError) as error:
            raise not_reached(rank, size, timeout_minutes) from error

    def agree(self, facts: Mapping[str, Any], check: Callable[[Mapping[str, Any]], None]) -> None:
        """Return once all are here and have checked the leader's facts; an error is one of all."""
        try:
            if self.rank == 0:
                self.store.set(LEADER, json.dumps(facts))
            self._wait_for(LEADER)
            check(json.loads(self.store.get(LEADER)))
            if self.store.add("agreeing", 1) == self.size:
                self.store.set(ALL_AGREE, "")
            self._wait_for(ALL_AGREE)
        except RuntimeError as error:
            if isinstance(error, BasOpdError):
                raise
            raise not_reached(self.rank, self.size, self.timeout_minutes) from error

    def _wait_for(self, key: str) -> None:
        self.store.wait([key], self.timeout)
        if failure := self._failure():
            raise self._adopted(failure)

    def settle(self, error: Exception) -> BasOpdError:
        """Return what this process ends with: its error, or that of the one that failed first."""
        own = error if isinstance(error, BasOpdError) else failed(self.rank, error)
        if own.rendezvous is not None:
            return own
        heard_of = isinstance(own, FailedRank) and own.rank != self.rank
        settled = own
        if heard_of or not own.is_told:
            try:
                failure = self._first_failure(own, heard_of=heard_of)
            except RuntimeError:  # The store has gone with the process that kept it.
                return own
            if failure is not None and failure.sentence != str(own):
                settled = self._adopted(failure)
            elif isinstance(own, Unanswered):
                return own
        settled.rendezvous = self
        return settled

    def say(self, say: Callable[[], None]) -> None:
        """Let the leader say why all end, and end no process before."""
        others = [f"ends {rank}" for rank in range(1, self.size)]
        is_said = self.rank == 0
        if is_said:
            say()
        with suppress(RuntimeError):  # The store may have ended with the leader.
            if self.rank == 0:
                self.store.set(SAID, "")
                self._has_soon(others)
            else:
                is_said = self._has_soon([SAID])
                self.store.set(others[self.rank - 1], "")
        if not is_said:
            say()

    def _first_failure(self, own: BasOpdError, *, heard_of: bool) -> Failure | None:
        """Return the failure on record; unless others have failed, put this one there."""
        if heard_of:
            self._has_soon([FAILURE])
        elif not isinstance(own, Unanswered):
            failure = Failure(self.rank, socket.gethostname(), str(own), own.exit_code)
            self.store.compare_set(FAILURE, "", json.dumps(failure))
            for key in (LEADER, ALL_AGREE):  # Who waits for these reads of the failure.
                self.store.compare_set(key, "", "failed")
        return self._failure()

    def _failure(self) -> Failure | None:
        if not self.store.check([FAILURE]):
            return None
        return Failure(*json.loads(self.store.get(FAILURE)))

    def _adopted(self, failure: Failure) -> BasOpdError:
        error = RankError(placed(failure.sentence, failure.rank, failure.host))
        error.exit_code = failure.code
        error.rendezvous = self
        return error

    def _has_soon(self, keys: Sequence[str]) -> bool:
        """Return whether the store has all keys within a few seconds."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.store.check(list(keys)):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def not_reached(rank: int, size: int, minutes: float) -> RankError:
    """Return the sentence about processes that did not come."""
    return RankError(
        f"Rank {rank} of {size} on {socket.gethostname()} did not reach the others within "
        f"{minutes:g} minutes. Check that all of them were started, and that "
        f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} can be reached."
    )


def placed(sentence: str, rank: int, host: str) -> str:
    """Return a sentence of a process with its rank and machine."""
    place = f"Rank {rank} on {host}"
    return sentence if sentence.startswith(place) else f"{place}: {sentence}"


def failed(rank: int, error: Exception) -> FailedRank:
    """Return the sentence about an error that was not foreseen."""
    what = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.errno:
        what = explain_failure(error)
    found = FailedRank(f"Rank {rank} on {socket.gethostname()} failed: {what}")
    found.rank = rank
    return found


def _open(rank: int, timeout: timedelta) -> Any:
    """Open the store that the launcher names: torchrun's agent keeps it, else the leader does."""
    dist: Any = importlib.import_module("torch.distributed")
    is_kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=rank == 0 and not is_kept,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=not is_kept,
    )
    # A store that outlives a restart has the notes of the attempt before.
    attempt = store.add(f"attempts of rank {rank}", 1)
    return dist.PrefixStore(f"attempt {attempt}", store)
