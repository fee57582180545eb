"""Prompts of examples, whose pictures threads can open ahead of time.

Threads suffice: Pillow and numpy release the interpreter while they decode, resize and copy, which
is nearly all of the work. They need no second copy of the libraries and no shared memory. One that
hangs does not keep the process.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait

from bas_opd.compute.clock import Clock
from bas_opd.errors import DataError
from bas_opd.model.processing import Pixels, Processor
from bas_opd.types import Example, Prompt, View

Seen = tuple[Pixels, str]

PATIENCE_SECONDS = 3.0
"""How long `close` waits for pictures that are being opened."""
LONGEST_SECONDS = 300.0
"""How long a prompt waits for its picture."""
POLL_SECONDS = 0.2


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
        self._clock, self._poll = clock or Clock(), poll
        self._threads = _Threads(threads, self._look) if threads else None
        self._coming: dict[str, Future[Seen]] = {}

    @property
    def is_ahead(self) -> bool:
        """Whether examples are encoded before they are asked for."""
        return self._threads is not None

    def expect(self, examples: Iterable[Example] = ()) -> None:
        """Start on examples that will be asked for, in this order; drop all others."""
        if self._threads is None:
            return
        dropped, self._coming = self._coming, {}
        for example in examples:
            if example.id not in self._coming:
                started = dropped.pop(example.id, None)
                self._coming[example.id] = started or self._threads.submit(example)
        for each in dropped.values():
            each.cancel()

    def __call__(self, example: Example) -> Prompt:
        """Return the prompt of an example."""
        try:
            return self.processor.prompt(*self._seen(example))
        except BaseException:
            self.expect()
            raise

    def close(self) -> None:
        """Open no further picture, and wait a short time for those that are being opened."""
        self.expect()
        if self._threads is not None:
            self._threads.join(PATIENCE_SECONDS)

    def _seen(self, example: Example) -> Seen:
        coming = self._coming.pop(example.id, None)
        if coming is not None and coming.done() and coming.exception() is None:
            return coming.result()
        with self._clock.waiting():
            if coming is not None:
                self._await(coming, example)
            if coming is not None and coming.exception() is not None:
                coming = None  # It may have been too early, and a second error counts.
            return self._look(example) if coming is None else coming.result()

    def _await(self, coming: Future[Seen], example: Example) -> None:
        """Return when a picture is open or has failed; raise if it takes too long."""
        end = time.monotonic() + LONGEST_SECONDS
        while not wait([coming], POLL_SECONDS).done:
            self._poll()
            if time.monotonic() > end:
                raise DataError(
                    f"The picture of example {example.id!r} was not open after "
                    f"{LONGEST_SECONDS:g} seconds ({example.image}). Check that the disk or the "
                    "network that holds it responds, and run the same command again."
                )

    def _look(self, example: Example) -> Seen:
        image, text = self.view(example)
        return self.processor.look(image), text


class _Threads:
    """Daemon threads, which end when there is nothing to do.

    The interpreter joins those of `concurrent.futures` when it exits: one that hangs would keep the
    process.
    """

    def __init__(self, most: int, look: Callable[[Example], Seen]) -> None:
        self._most, self._look = most, look
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Example, Future[Seen]]] = deque()
        self._running: set[threading.Thread] = set()

    def submit(self, example: Example) -> Future[Seen]:
        """Look at an example after those that were submitted before it."""
        future: Future[Seen] = Future()
        with self._lock:
            self._waiting.append((example, future))
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
                example, future = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(self._look(example))
                except BaseException as error:
                    future.set_exception(error)
            del future  # Its error refers to this frame, and the cycle would keep a picture.
