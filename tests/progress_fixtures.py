"""A progress display that shows nothing."""

from __future__ import annotations

from collections.abc import Callable


class Quiet:
    """Keeps messages; calls `then` after `after` units of progress, if told to."""

    def __init__(self, *, then: Callable[[], None] = lambda: None, after: int = -1) -> None:
        self.then, self.left = then, after
        self.messages: list[str] = []

    def start(self, total: int, what: str = "steps", *, done: int = 0) -> None: ...

    def advance(self, count: int = 1) -> None:
        self.left -= count
        if self.left == 0:
            self.then()

    def message(self, text: str) -> None:
        self.messages.append(text)
