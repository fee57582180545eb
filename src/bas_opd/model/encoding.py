"""Prompts of examples, and pictures that threads open ahead of time.

Threads suffice: Pillow and numpy release the interpreter while they decode, resize and copy, which
is nearly all of the work. They need no second copy of the libraries and no shared memory. One that
hangs does not keep the process.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import Generic, TypeVar

import torch
from torch import Tensor

from bas_opd.compute.clock import Clock
from bas_opd.errors import DataError
from bas_opd.model.processing import Pixels, Processor
from bas_opd.types import Example, Prompt, View

Seen = TypeVar("Seen")
Look = Callable[[], Seen]

PATIENCE_SECONDS = 3.0
"""How long `close` waits for pictures that are being opened."""
LONGEST_SECONDS = 300.0
"""How long a prompt waits for its picture."""
POLL_SECONDS = 0.2
PINNED_BYTES = 2**23
"""From this size on, a picture is copied to a GPU while that computes."""


def idle_threads(device: torch.device, processes: int = 1) -> int:
    """Return how many threads open pictures for each of so many processes of this machine.

    Where the CPU computes there is no idle time to fill.
    """
    if device.type == "cpu":
        return 0
    return max(1, min(8, len(os.sched_getaffinity(0)) // processes - 1))


class ViewEncoder:
    """Encodes what a view shows of examples; those that were announced, in threads.

    The text is tokenised where the prompt is asked for: tokenizers are not safe in threads. `poll`
    is called while a picture is waited for, and may raise.
    """

    def __init__(
        self,
        processor: Processor,
        view: View,
        clock: Clock | None = None,
        *,
        threads: int = 0,
        poll: Callable[[], None] = lambda: None,
    ) -> None:
        self.processor = processor
        self.view = view
        self._ahead = Ahead[tuple[Pixels, str]](threads, clock, poll=poll)

    @property
    def is_ahead(self) -> bool:
        """Whether examples are encoded before they are asked for."""
        return self._ahead.has_threads

    def expect(self, examples: Iterable[Example] = ()) -> None:
        """Start on examples that will be asked for, in this order; drop all others."""
        self._ahead.expect({each.id: partial(self._look, each) for each in examples})

    def __call__(self, example: Example) -> Prompt:
        """Return the prompt of an example."""
        try:
            pixels, text = self._ahead.take(
                example.id,
                partial(self._look, example),
                what=f"The picture of example {example.id!r} ({example.image})",
            )
            return self.processor.prompt(pixels, text)
        except BaseException:
            self.expect()
            raise

    def close(self) -> None:
        """Open no further picture, and wait a short time for those that are being opened."""
        self._ahead.close()

    def _look(self, example: Example) -> tuple[Pixels, str]:
        image, text = self.view(example)
        pixels = self.processor.look(image)
        return replace(pixels, values=_pinned(pixels.values)), text


def _pinned(values: Tensor) -> Tensor:
    """Return a tensor from which a GPU copies by itself; the same where that gains nothing.

    Pinning holds the driver's lock for milliseconds, and nothing starts on the GPU meanwhile.
    """
    if not torch.cuda.is_initialized() or values.nbytes < PINNED_BYTES:
        return values
    try:
        return values.pin_memory()
    except RuntimeError:  # The system pins no more memory.
        return values


class Ahead(Generic[Seen]):
    """Does what was announced in threads; what was not, when it is asked for."""

    def __init__(
        self,
        threads: int,
        clock: Clock | None = None,
        *,
        poll: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock, self._poll = clock or Clock(), poll
        self._threads = _Threads[Seen](threads) if threads else None
        self._coming: dict[str, Future[Seen]] = {}

    @property
    def has_threads(self) -> bool:
        """Whether anything is done before it is asked for."""
        return self._threads is not None

    def expect(self, looks: Mapping[str, Look[Seen]]) -> None:
        """Start on what will be asked for by these names, in this order; drop all else."""
        if self._threads is None:
            return
        dropped, self._coming = self._coming, {}
        for name, look in looks.items():
            self._coming[name] = dropped.pop(name, None) or self._threads.submit(look)
        for each in dropped.values():
            each.cancel()

    def take(self, name: str, look: Look[Seen], *, what: str) -> Seen:
        """Return what was announced under a name, else do it now; `what` is for errors."""
        coming = self._coming.pop(name, None)
        if coming is not None and coming.done() and coming.exception() is None:
            return coming.result()
        with self._clock.waiting():
            if coming is not None:
                self._await(coming, what)
            if coming is not None and coming.exception() is not None:
                coming = None  # It may have been too early, and a second error counts.
            return look() if coming is None else coming.result()

    def close(self) -> None:
        """Begin nothing more, and wait a short time for what has begun."""
        self.expect({})
        if self._threads is not None:
            self._threads.join(PATIENCE_SECONDS)

    def _await(self, coming: Future[Seen], what: str) -> None:
        """Return when it is there or has failed; raise if it takes too long."""
        end = time.monotonic() + LONGEST_SECONDS
        while not wait([coming], POLL_SECONDS).done:
            self._poll()
            if time.monotonic() > end:
                raise DataError(
                    f"{what} was not open after {LONGEST_SECONDS:g} seconds. Check that the disk "
                    "or the network that holds it responds, and run the same command again."
                )


class _Threads(Generic[Seen]):
    """Daemon threads, which end when there is nothing to do.

    The interpreter joins those of `concurrent.futures` when it exits: one that hangs would keep the
    process.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Look[Seen], Future[Seen]]] = deque()
        self._running: set[threading.Thread] = set()

    def submit(self, look: Look[Seen]) -> Future[Seen]:
        """Do this after what was submitted before it."""
        future: Future[Seen] = Future()
        with self._lock:
            self._waiting.append((look, future))
            if len(self._running) < self._most:
                self._start(future)
        return future

    def _start(self, future: Future[Seen]) -> None:
        thread = threading.Thread(target=self._work, name="pictures", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # The system allows no more.
            if not self._running:  # Whoever needs it opens it.
                self._waiting.pop()
                future.set_exception(error)
            return
        self._running.add(thread)

    def join(self, seconds: float) -> None:
        """Wait for the threads, no longer than this."""
        end = time.monotonic() + seconds
        with self._lock:
            running = tuple(self._running)
        for thread in running:
            thread.join(max(0.0, end - time.monotonic()))

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running.remove(threading.current_thread())
                    return
                look, future = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(look())
                except BaseException as error:
                    future.set_exception(error)
            del look, future  # Its error refers to this frame, and the cycle would keep a picture.
