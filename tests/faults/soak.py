"""Commands that fail in every way, one after another, until the time is up: `make soak`.

Training, resuming, exporting and evaluating: each fault hits a command in a place of its own. The
command is then repeated, and must end as the undisturbed one. Every call to the disk fails in every
way, the disk is full from it on, and the power fails at it, in random order, with random kills,
stops and second starts between them. Prints one line.

With `--processes 3` it trains in three processes instead, and kills or stops one of them at random
moments, with and without layers that are gathered one by one.
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from conftest import SETTINGS, TINY
from failing_calls import KINDS, FailingCall, PowerCut, count_calls
from process import Command, Ended, Fault, ask_to_stop, at, bas_opd
from run_states import assert_same_end
from shapes import make_pictures
from small_models import build_small_model
from test_evaluation import asking
from test_evaluation import assert_same_end as assert_same_answers
from worlds.ranks import Ranks, train_in_world

from bas_opd.rollout import Sampler
from bas_opd.run.checkpoint import is_intact, published

FAILURES = (1, 2, 3)
"""How a command exits that explains why it failed."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A command that is made to fail, and how it ends undisturbed."""

    name: str
    words: Callable[[Path], tuple[object, ...]]
    """Its words, given the place that it writes to."""
    compare: Callable[[Path, Path], None]
    """Raises unless a place holds what another does."""
    whole: Path
    """Where it was left undisturbed."""
    begun: Path | None = None
    """What is there before."""
    is_repeated: bool = True
    """Whether it does what is left to do in a place; else it refuses one that is there."""

    def prepare(self, place: Path) -> None:
        if self.begun is not None:
            shutil.copytree(self.begun, place)

    def run(self, place: Path, fault: Fault | None = None) -> Ended:
        return bas_opd(*self.words(place), fault=fault)

    def start(self, place: Path) -> Command:
        return Command(*self.words(place))

    def finish(self, place: Path) -> None:
        """Repeat it without a fault."""
        if self.is_repeated or not place.exists():
            last = self.run(place)
            assert last.code == 0, last.output
        self.compare(place, self.whole)


Trial = tuple[str, Job, Callable[[Path], None]]
"""A kind of fault, the job that it hits, and one of that kind."""


class Soak:
    """The jobs, each done once undisturbed, and what may happen to them."""

    def __init__(self, home: Path, seed: int) -> None:
        self._draw = random.Random(seed)
        self._home = home
        model = build_small_model(home / "model", hidden=16)
        data = make_pictures(home / "data", n=8, seed=1, size=(96, 96)).folder
        questions = asking(4, home / "questions")
        settings = (TINY, f"model.path={model}", f"data.path={data}", *SETTINGS)

        def train(run: Path) -> tuple[object, ...]:
            return ("train", *settings, f"run.output={run}")

        asked = ("eval", model, "--bench", "zoombench", "--data", f"zoombench={questions}")
        short = ("--partial", "--device", "cpu", "--max-response-tokens", 4, "--batch", 2)
        whole = home / "training"
        stop = at(Sampler, "generate", ask_to_stop, call=4, before=True)
        assert bas_opd(*train(home / "stopped"), fault=stop).code == 75
        self._jobs: dict[Job, tuple[int, float]] = {}
        """Each with its calls to the disk, and its seconds."""
        self._add(Job(name="training", words=train, compare=assert_same_end, whole=whole))
        self._add(
            Job(
                name="resuming",
                words=train,
                compare=assert_same_end,
                whole=home / "resuming",
                begun=home / "stopped",
            )
        )
        self._add(
            Job(
                name="exporting",
                words=lambda out: ("export", whole, out),
                compare=_assert_same_files,
                whole=home / "exporting",
                is_repeated=False,
            )
        )
        self._add(
            Job(
                name="evaluating",
                words=lambda out: (*asked, *short, "--out", out),
                compare=assert_same_answers,
                whole=home / "evaluating",
            )
        )

    def _add(self, job: Job) -> None:
        job.prepare(job.whole)
        started = time.monotonic()
        calls = count_calls(partial(job.run, job.whole))
        self._jobs[job] = calls, time.monotonic() - started

    def trials(self) -> Iterator[Trial]:
        """Yield faults, endless."""
        faults = [
            (job, number, kind)
            for job, (calls, _) in self._jobs.items()
            for number in range(1, calls + 1)
            for kind in (*KINDS, "power")
        ]
        while True:
            self._draw.shuffle(faults)
            for place, (job, number, kind) in enumerate(faults):
                if kind == "power":
                    cut = partial(self._cut, job, PowerCut(number, seed=number))
                    yield "power cuts", job, cut
                else:
                    name = "full disks" if kind == "full" else "failed calls"
                    yield name, job, partial(self._fail, job, FailingCall(number, kind))
                if place % len(KINDS) == 0:
                    yield from self._random(self._draw.choice(list(self._jobs)))

    def _random(self, job: Job) -> Iterator[Trial]:
        yield "kills", job, partial(self._signal, job, signal.SIGKILL)
        yield "stops", job, partial(self._signal, job, signal.SIGTERM)
        yield "second starts", job, partial(self._twice, job)

    def _fail(self, job: Job, fault: Fault, place: Path) -> None:
        ended = job.run(place, fault)
        _assert_explained(ended)
        assert all(is_intact(path) for path in published(place / "checkpoints"))

    def _cut(self, job: Job, fault: Fault, place: Path) -> None:
        job.run(place, fault)

    def _signal(self, job: Job, number: signal.Signals, place: Path) -> None:
        for _ in range(self._draw.randint(1, 3)):
            command = job.start(place)
            self._pause(job)
            command.send(number)
            command.wait()

    def _twice(self, job: Job, place: Path) -> None:
        first = job.start(place)
        self._pause(job)
        _assert_explained(job.run(place))
        _assert_explained(first.wait())

    def _pause(self, job: Job) -> None:
        time.sleep(self._draw.uniform(0, self._jobs[job][1]))


@dataclass(frozen=True, kw_only=True)
class SharedJob(Job):
    """Training in several processes."""

    size: int

    def run(self, place: Path, fault: Fault | None = None) -> Ended:
        assert fault is None
        ended = self.start_ranks(place).wait()
        output = "\n".join(each.output for each in ended)
        return Ended(code=max(abs(each.code) for each in ended), output=output)

    def start_ranks(self, place: Path) -> Ranks:
        return train_in_world(self.size, [str(word) for word in self.words(place)])


class Worlds:
    """Runs of several processes, one of which gets a signal."""

    def __init__(self, home: Path, seed: int, size: int) -> None:
        self._draw = random.Random(seed)
        model = build_small_model(home / "model", hidden=16)
        data = make_pictures(home / "data", n=8, seed=1, size=(96, 96)).folder
        paths = (f"model.path={model}", f"data.path={data}", "shard.timeout_minutes=1")
        self._jobs: dict[SharedJob, float] = {}
        """Each with its seconds."""
        for name, reshard in (("training", "false"), ("training by layers", "true")):
            words = ("train", TINY, *paths, *SETTINGS, f"shard.reshard={reshard}")
            job = SharedJob(
                name=name,
                words=lambda run, words=words: (*words, f"run.output={run}"),
                compare=assert_same_end,
                whole=home / name,
                size=size,
            )
            started = time.monotonic()
            undisturbed = job.run(job.whole)
            assert undisturbed.code == 0, undisturbed.output
            self._jobs[job] = time.monotonic() - started

    def trials(self) -> Iterator[Trial]:
        """Yield faults, endless."""
        kinds = {"kills": signal.SIGKILL, "stops": signal.SIGTERM}
        while True:
            name, job = self._draw.choice(list(kinds)), self._draw.choice(list(self._jobs))
            yield name, job, partial(self._signal, job, kinds[name])

    def _signal(self, job: SharedJob, number: signal.Signals, place: Path) -> None:
        for _ in range(self._draw.randint(1, 3)):
            ranks = job.start_ranks(place)
            time.sleep(self._draw.uniform(0, self._jobs[job]))
            ranks.send(self._draw.randrange(job.size), number)
            ended = ranks.wait()
            assert all("Traceback" not in each.output for each in ended), ended
            # It may have ended before, or have come to its end.
            assert all(each.code for each in ended) or not any(each.code > 0 for each in ended)


def _assert_explained(ended: Ended) -> None:
    assert "Traceback" not in ended.output, ended.output
    assert ended.code in (0, *FAILURES), ended


def _assert_same_files(folder: Path, whole: Path) -> None:
    """Every file, byte for byte, and nothing of an earlier try beside the folder."""
    ours, theirs = (
        {path.name: path.read_bytes() for path in each.iterdir()} for each in (folder, whole)
    )
    assert ours == theirs
    assert not list(folder.parent.glob(f".{folder.name}.*"))


def main() -> None:
    """Soak until the time is up or something is lost."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--seconds", type=float, default=3600)
    options.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    options.add_argument("--processes", type=int, default=1)
    chosen = options.parse_args()
    home = Path(tempfile.mkdtemp(prefix="soak-"))
    if chosen.processes > 1:
        soak = Worlds(home, chosen.seed, chosen.processes)
    else:
        soak = Soak(home, chosen.seed)
    done, jobs = Counter[str](), Counter[str]()
    end = time.monotonic() + chosen.seconds
    for number, (name, job, trial) in enumerate(soak.trials()):
        if time.monotonic() > end:
            break
        place = home / f"{number}"
        job.prepare(place)
        try:
            trial(place)
            job.finish(place)
        except BaseException:
            print(f"Lost: {name} in {job.name}, seed {chosen.seed}, trial {number}, in {place}.")
            raise
        done[name] += 1
        jobs[job.name] += 1
        shutil.rmtree(place)
    shutil.rmtree(home)
    counts = (", ".join(f"{n:,} {name}" for name, n in each.items()) for each in (done, jobs))
    print("Soaked with seed {}: {} ({}). All ended as undisturbed.".format(chosen.seed, *counts))


if __name__ == "__main__":
    main()
