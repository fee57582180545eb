"""Ways to do the same work, timed alternately in one process, and the table of their times."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from bas_opd.compute.memory import ran_out
from bas_opd.errors import OutOfMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One way to do the work; `run` returns the number of tokens it processed."""

    name: str
    run: Callable[[], int]
    required_share: float | None = None
    """Largest share of this side's time that ours may take."""
    is_floor: bool = False
    """Whether it is only the part of the work that nobody can save."""
    steps: int = 1
    """Steps of equal work in a run; one of them is timed."""
    limit: Callable[[], int] | None = None
    """Returns the tokens of a batch, which fall where memory runs out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """What one side took, without the side: that would keep its model in memory."""

    name: str
    seconds: tuple[float, ...]
    tokens: int
    peak_gib: float | None
    """GPU memory above what was taken before; None on a CPU."""
    required_share: float | None = None
    is_floor: bool = False

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @classmethod
    def together(cls, name: str, parts: Sequence[Timed]) -> Timed:
        """Return what parts take one after another."""
        peaks = [part.peak_gib for part in parts if part.peak_gib is not None]
        return cls(
            name=name,
            seconds=(sum(part.median for part in parts),),
            tokens=sum(part.tokens for part in parts),
            peak_gib=max(peaks, default=None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The sides of one phase, ours first."""

    name: str
    shape: str
    sides: tuple[Timed, ...]
    skipped: tuple[str, ...] = ()
    """What was left out, and why."""

    def lines(self, *, judged: bool = False) -> list[str]:
        """Return the table; `judged` says whether ours takes as little as is required of it."""
        ours = self.sides[0]
        head = f"{'':<34}{'seconds':>9}{'tokens':>10}"
        has_peaks = ours.peak_gib is not None
        head += f"{'GiB':>7}" if has_peaks else ""
        head += "   ours takes this share of its time (of its tokens)"
        lines = [f"{self.name}: {self.shape}", head]
        for each in self.sides:
            line = f"{each.name:<34}{each.median:>9.4f}{each.tokens:>10,}"
            line += f"{each.peak_gib:>7.2f}" if each.peak_gib is not None else ""
            lines.append(line if each is ours else line + self._verdict(each, judged))
        return [*lines, *(f"left out: {reason}" for reason in self.skipped)]

    def content(self) -> dict[str, Any]:
        """Return what is written to a JSON file."""
        ours = self.sides[0]
        return {
            "name": self.name,
            "shape": self.shape,
            "skipped": list(self.skipped),
            "sides": [
                {
                    "side": each.name,
                    "median_seconds": each.median,
                    "seconds": list(each.seconds),
                    "processed_tokens": each.tokens,
                    "peak_gib": each.peak_gib,
                    "share_of_its_time": ours.median / each.median,
                    "share_of_its_tokens": ours.tokens / each.tokens,
                    "required_share": each.required_share,
                    "is_floor": each.is_floor,
                }
                for each in self.sides
            ],
        }

    def _verdict(self, each: Timed, judged: bool) -> str:
        ours = self.sides[0]
        share, floor = ours.median / each.median, ours.tokens / each.tokens
        if each.is_floor:
            return f"   ours takes {share:.1f} times the floor"
        text = f"   {share:.2f} ({floor:.2f}): {1 / share:.1f} times as fast"
        if not judged or each.required_share is None:
            return text
        met = "met" if share <= each.required_share else "NOT MET"
        return f"{text}; at most {each.required_share:.2f} required: {met}"


def compare(
    name: str,
    sides: Sequence[Side],
    *,
    shape: str,
    device: torch.device,
    repeats: int,
    skipped: Sequence[str] = (),
) -> Comparison:
    """Time the sides alternately, each after one warm-up; a rival that fails is left out."""
    ours = sides[0]
    clocks = [_Clock(side) for side in sides]
    left_out = list(skipped)
    for turn in range(repeats + 1):
        for clock in tuple(clocks):
            try:
                clock.run(device, is_warm_up=turn == 0)
            except Exception as error:
                if clock.side is ours:
                    raise
                # Another library must not end the others' timings.
                named = f"{type(error).__name__}: {error}"
                why = "there is not enough memory" if lacks_memory(error) else named
                left_out.append(f"{clock.side.name}, which failed: {why.rstrip('.')}.")
                clocks.remove(clock)
    left_out += (clock.smaller() for clock in clocks if clock.has_shrunk)
    return Comparison(
        name=name,
        shape=shape,
        skipped=tuple(left_out),
        sides=tuple(clock.timed(device) for clock in clocks),
    )


def lacks_memory(error: Exception) -> bool:
    """Return whether memory ran out, explained already or not."""
    return isinstance(error, OutOfMemory) or ran_out(error)


class _Clock:
    """Times one side."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.asked = side.limit() if side.limit else 0
        self.tokens = self.peak = 0
        self.seconds: list[float] = []

    def run(self, device: torch.device, *, is_warm_up: bool) -> None:
        before = _start(device)
        start = perf_counter()
        self.tokens = self.side.run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if not is_warm_up:
            self.seconds.append((perf_counter() - start) / self.side.steps)
            self.peak = max(self.peak, _peak(device) - before)

    @property
    def has_shrunk(self) -> bool:
        """Whether memory ran out, so that the side went on with smaller batches."""
        return self.side.limit is not None and self.side.limit() < self.asked

    def smaller(self) -> str:
        """Return what was left out for it."""
        assert self.side.limit is not None
        return (
            f"batches of {self.asked:,} tokens for {self.side.name}, as memory ran out; it was "
            f"timed with {self.side.limit():,}."
        )

    def timed(self, device: torch.device) -> Timed:
        return Timed(
            name=self.side.name,
            seconds=tuple(self.seconds),
            tokens=self.tokens,
            peak_gib=self.peak / 2**30 if device.type == "cuda" else None,
            required_share=self.side.required_share,
            is_floor=self.side.is_floor,
        )


def _start(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
