"""Runs that fail in every way, one after another, until the time is up: `make soak`.

Each fault hits a run of its own, which is then taken up again and must end as the undisturbed one:
every call to the disk fails in every way and the power at every call, in random order, with random
kills, stops and second starts between them. Prints one line.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from conftest import SETTINGS, TINY
from failing_calls import KINDS, FailingCall, PowerCut, assert_unharmed, count_calls
from process import Command, Ended, Fault, bas_opd
from run_states import assert_same_end
from shapes import make_pictures
from small_models import build_small_model

Trial = Callable[[Path], None]


class Soak:
    """A model, a set, and a run that nothing happened to."""

    def __init__(self, home: Path, seed: int) -> None:
        self.home, self._draw = home, random.Random(seed)
        model = build_small_model(home / "model", hidden=16)
        data = make_pictures(home / "data", n=8, seed=1, size=(96, 96)).folder
        self._words = (str(TINY), f"model.path={model}", f"data.path={data}", *SETTINGS)
        started = time.monotonic()
        self.calls = count_calls(partial(self.train, home / "whole"))
        self.seconds = time.monotonic() - started

    def train(self, run: Path, fault: Fault | None = None) -> Ended:
        return bas_opd("train", *self._words, f"run.output={run}", fault=fault)

    def trials(self) -> Iterator[tuple[str, Trial]]:
        """Yield the name of a kind of fault, and one of that kind; endless."""
        for number in self._draw.sample(range(1, self.calls + 1), self.calls):
            for kind in KINDS:
                yield "failed calls", partial(self._fail, FailingCall(number, kind))
            yield "power cuts", partial(self._cut, PowerCut(number, seed=number))
            yield from self._random()
        while True:
            yield from self._random()

    def _random(self) -> Iterator[tuple[str, Trial]]:
        yield "kills", partial(self._signal, signal.SIGKILL)
        yield "stops", partial(self._signal, signal.SIGTERM)
        yield "second starts", self._twice

    def _fail(self, fault: Fault, run: Path) -> None:
        assert_unharmed(self.train(run, fault), run)

    def _cut(self, fault: Fault, run: Path) -> None:
        self.train(run, fault)

    def _signal(self, number: signal.Signals, run: Path) -> None:
        for _ in range(self._draw.randint(1, 3)):
            command = Command("train", *self._words, f"run.output={run}")
            time.sleep(self._draw.uniform(0, self.seconds))
            command.send(number)
            command.wait()

    def _twice(self, run: Path) -> None:
        first = Command("train", *self._words, f"run.output={run}")
        time.sleep(self._draw.uniform(0, self.seconds))
        second = self.train(run)
        assert second.code in (0, 3), second.output
        assert first.wait().code in (0, 3)


def main() -> None:
    """Soak until the time is up or a run is lost."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--seconds", type=float, default=3600)
    options.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    chosen = options.parse_args()
    home = Path(tempfile.mkdtemp(prefix="soak-"))
    soak, done = Soak(home, chosen.seed), Counter[str]()
    end = time.monotonic() + chosen.seconds
    for number, (name, trial) in enumerate(soak.trials()):
        if time.monotonic() > end:
            break
        run = home / f"run-{number}"
        try:
            trial(run)
            last = soak.train(run)
            assert last.code == 0, last.output
            assert_same_end(run, home / "whole")
        except BaseException:
            print(f"Lost: {name}, seed {chosen.seed}, trial {number}. Its run is {run}.")
            raise
        done[name] += 1
        shutil.rmtree(run)
    shutil.rmtree(home)
    kinds = ", ".join(f"{count:,} {name}" for name, count in done.items())
    print(f"Soaked with seed {chosen.seed}: {kinds}. Every run ended as the undisturbed one.")


if __name__ == "__main__":
    main()
