"""Seconds per phase of a step, with the device's work counted where it was asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Clock:
    """Times the phases of one step after another."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device or torch.device("cpu")
        self._seconds: dict[str, float] = {}
        self._waited = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time spent inside to the named phase."""
        started = self._now()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + self._now() - started

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Add the time spent inside to what was waited for data; it is part of a phase too."""
        started = self._now()
        yield
        self._waited += self._now() - started

    def read_waited(self) -> float:
        """Return the seconds waited for data since the last reading, and reset them."""
        waited, self._waited = self._waited, 0.0
        return waited

    def read(self) -> dict[str, float]:
        """Return the seconds since the last reading, and reset the clock."""
        seconds, self._seconds = self._seconds, {}
        return seconds

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
