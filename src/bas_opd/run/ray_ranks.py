"""The processes of a run on a Ray cluster: each is a command of its own, as torchrun starts it.

An actor on each place starts `bas-opd train` with torchrun's variables, hands on what it prints,
and sends it signals. A process apart from the actor has a main thread of its own, so it hears
signals, and it computes the same bytes as under torchrun. Ray carries lines and exit codes only.
"""

from __future__ import annotations

import importlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from bas_opd.compute.world import VARIABLES
from bas_opd.errors import ConfigError, PreemptionError, RankError
from bas_opd.run.stopping import StopFlag

RESTARTS = 3
GRACE_SECONDS = 60
"""How long the others may take to end after one rank has failed."""
LOST = -1000
"""Stands for the exit code of a rank whose machine or actor has gone."""
COMMAND = (
    "import sys; from bas_opd.compute.parent import end_with_parent; "
    "end_with_parent(int(sys.argv.pop(1))); "
    "from bas_opd.cli.main import app; app(prog_name='bas-opd')"
)


def train_on_ray(
    words: Sequence[str],
    *,
    workers: int,
    restarts: int = RESTARTS,
    device: str = "auto",
    wait_minutes: float = 30,
) -> int:
    """Run `bas-opd` with these words in so many processes of a Ray cluster; return its exit code.

    The cluster is the one of `RAY_ADDRESS`, the one that runs on this machine, or a new one here.
    A rank that dies or fails unforeseen ends the others, and all start again from the last
    checkpoint; an error of any rank that a user can cause, such as a full disk, is final.
    """
    if all(name in os.environ for name in VARIABLES):
        raise ConfigError(
            "--ray starts the processes of a run itself, and this one was started by torchrun. "
            "Leave out --ray, or call `bas-opd train` without torchrun."
        )
    stop = StopFlag()
    with _cluster() as ray, stop.listening():
        total = ray.cluster_resources()
        needs_gpu = device != "cpu" and (device != "auto" or total.get("GPU", 0) > 0)
        bundle = {"CPU": 1, "GPU": 1} if needs_gpu else {"CPU": 1}
        for kind in bundle:
            if total.get(kind, 0) < workers:
                raise ConfigError(
                    f"--ray {workers} needs {workers} {kind}s, one for each worker, but the Ray "
                    f"cluster has {total.get(kind, 0):g}. Start fewer workers, or add machines "
                    "with `ray start --address=HEAD:6379`."
                )
        for left in range(restarts, -1, -1):
            codes = _attempt(ray, words, [bundle] * workers, stop, wait_minutes)
            stopped = PreemptionError.exit_code
            if stop.reason is not None and {stopped, -signal.SIGTERM}.intersection(codes):
                return stopped  # The signal may reach a rank that does not listen yet or any more.
            if not any(code < 0 or code == RankError.exit_code for code in codes):
                return max(codes)  # All have ended with the error of the first that failed.
            if stop.reason is not None or not left:
                raise RankError(
                    f"{_cause(codes)}, and no restart is left. Published checkpoints are as they "
                    "were; rerun the same command to resume."
                )
            _say(
                f"{_cause(codes)}. All ranks start again from the last checkpoint; after this, "
                f"{left - 1} restarts are left."
            )
    raise AssertionError("The last attempt returns or raises.")


@contextmanager
def _cluster() -> Iterator[Any]:
    """Yield the module `ray`, connected to a cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray = importlib.import_module("ray")
    except ImportError:
        raise ConfigError(
            "--ray needs Ray, which is not installed. Run `pip install ray`, or start the "
            "processes with torchrun."
        ) from None
    try:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise RankError(
            f"No Ray cluster was reached or started: {error}. Check RAY_ADDRESS, or run `ray "
            "status`."
        ) from error
    try:
        yield ray
    except ray.exceptions.RayError as error:
        raise RankError(
            f"The Ray cluster failed: {_last_line(error)} Published checkpoints are as they were; "
            "rerun the same command to resume."
        ) from error
    finally:
        ray.shutdown()


def _attempt(
    ray: Any, words: Sequence[str], bundles: list[dict[str, int]], stop: StopFlag, minutes: float
) -> list[int]:
    """Start all ranks, follow them to their end, and return their exit codes."""
    util = importlib.import_module("ray.util")
    group = util.placement_group(bundles, strategy="PACK")
    try:
        deadline = time.monotonic() + 60 * minutes
        while not group.wait(timeout_seconds=1):
            if stop.reason is not None:
                raise PreemptionError(
                    f"Stopped by {stop.reason} while it waited for free places in the Ray cluster."
                )
            if time.monotonic() > deadline:
                each = " and ".join(f"1 {kind}" for kind in bundles[0])
                raise RankError(
                    f"The Ray cluster had no {len(bundles)} free places of {each} within "
                    f"{minutes:g} minutes (shard.timeout_minutes). `ray status` shows what takes "
                    "them."
                )
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        actors = [
            ray.remote(_Rank)
            .options(
                num_cpus=bundle["CPU"],
                num_gpus=bundle.get("GPU", 0),
                scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=index
                ),
            )
            .remote()
            for index, bundle in enumerate(bundles)
        ]
        try:
            actors = _start(ray, actors, words, stop, deadline)
        except ray.exceptions.RayError as error:
            _say(f"A Ray actor did not start: {_last_line(error)}")
            return [LOST] * len(actors)
        return _follow(ray, actors, stop)
    finally:
        util.remove_placement_group(group)


def _answers(ray: Any, replies: list[Any], stop: StopFlag, deadline: float) -> list[Any]:
    """Return what actors reply; they may be slow, or on a machine that has gone."""
    while len(ray.wait(replies, num_returns=len(replies), timeout=1)[0]) < len(replies):
        if stop.reason is not None:
            raise PreemptionError(f"Stopped by {stop.reason} while the Ray actors started.")
        if time.monotonic() > deadline:
            raise RankError(
                "The Ray actors did not start in time (shard.timeout_minutes). `ray status` shows "
                "the machines of the cluster."
            )
    return ray.get(replies)


def _start(
    ray: Any, actors: list[Any], words: Sequence[str], stop: StopFlag, deadline: float
) -> list[Any]:
    """Start the command on every actor; return them in the order of their ranks."""
    asked = [actor.place.remote() for actor in actors]
    places: list[Place] = _answers(ray, asked, stop, deadline)
    # Ranks of one machine stand together: their exchanges stay on it.
    machines: dict[str, list[int]] = {}
    for index, place in enumerate(places):
        machines.setdefault(place.machine, []).append(index)
    order = [index for indices in machines.values() for index in indices]
    (port,) = _answers(ray, [actors[order[0]].free_port.remote()], stop, deadline)
    shared = {
        "WORLD_SIZE": str(len(actors)),
        "MASTER_ADDR": places[order[0]].address,
        "MASTER_PORT": str(port),
    }
    started = []
    for rank, index in enumerate(order):
        here = machines[places[index].machine]
        own = {
            "RANK": str(rank),
            "LOCAL_RANK": str(here.index(index)),
            "LOCAL_WORLD_SIZE": str(len(here)),
        }
        if gpus := [gpu for other in here for gpu in places[other].gpus]:
            own["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        started.append(actors[index].start.remote(list(words), os.getcwd(), {**shared, **own}))
    _answers(ray, started, stop, deadline)
    return [actors[index] for index in order]


def _follow(ray: Any, actors: list[Any], stop: StopFlag) -> list[int]:
    """Print what ranks print until all have ended, and return their exit codes.

    When one has failed and others have not ended a while later, they are killed; their code is
    that of the failure.
    """
    codes: dict[int, int] = {}
    failure, killed = 0, set[int]()
    pending = {actor.follow.remote(): rank for rank, actor in enumerate(actors)}
    is_told, deadline = False, float("inf")
    while pending:
        ready, _ = ray.wait(list(pending), num_returns=1, timeout=1)
        for reply in ready:
            rank = pending.pop(reply)
            try:
                lines, code = ray.get(reply)
            except ray.exceptions.RayError:
                lines, code = [], LOST
            for descriptor, line in lines:
                print(line, end="", file=sys.stderr if descriptor == 2 else sys.stdout, flush=True)
            if code is None:
                pending[actors[rank].follow.remote()] = rank
            else:
                codes[rank] = code
                failure = failure or code
        if stop.reason is not None and not is_told:
            is_told = True
            _send(actors, pending.values(), signal.SIGTERM)
        if failure and deadline == float("inf"):
            deadline = time.monotonic() + GRACE_SECONDS
        if time.monotonic() > deadline:
            deadline = time.monotonic() + GRACE_SECONDS
            killed |= set(pending.values())
            _send(actors, pending.values(), signal.SIGKILL)
    return [failure if rank in killed else codes[rank] for rank in range(len(actors))]


def _send(actors: list[Any], ranks: Any, number: signal.Signals) -> None:
    for rank in ranks:
        actors[rank].send.remote(int(number))


def _cause(codes: Sequence[int]) -> str:
    """Return what happened to the rank that failed first; the others missed it."""
    late = (0, RankError.exit_code)
    rank, code = min(enumerate(codes), key=lambda each: (each[1] >= 0, each[1] in late))
    if code == LOST:
        return f"Rank {rank} was lost with its Ray actor"
    if code < 0:
        return f"Rank {rank} was ended by {signal.Signals(-code).name}"
    return f"Rank {rank} ended with exit code {code}"


def _last_line(error: Exception) -> str:
    """Return what an error says at last: those of Ray begin with a traceback of another process."""
    return str(error).rstrip().rpartition("\n")[2]


def _say(sentence: str) -> None:
    print(f"bas-opd: {sentence}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an actor runs, and the GPUs that it may use."""

    machine: str
    address: str
    gpus: tuple[str, ...]


class _Rank:
    """A Ray actor: one process of the run, on the actor's machine."""

    def __init__(self) -> None:
        self._said: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []

    def place(self) -> Place:
        ray = importlib.import_module("ray")
        context = ray.get_runtime_context()
        return Place(
            machine=context.get_node_id(),
            address=ray.util.get_node_ip_address(),
            gpus=tuple(map(str, context.get_accelerator_ids().get("GPU", ()))),
        )

    def free_port(self) -> int:
        with socket.socket() as probe:
            probe.bind(("", 0))
            return int(probe.getsockname()[1])

    def start(self, words: list[str], folder: str, variables: dict[str, str]) -> None:
        """Start the command in a folder of this machine."""
        environment = {"OMP_NUM_THREADS": "1", **os.environ, **variables}
        self._process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, str(os.getpid()), *words],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        for descriptor, stream in ((1, self._process.stdout), (2, self._process.stderr)):
            assert stream is not None
            reader = threading.Thread(target=self._read, args=(descriptor, stream), daemon=True)
            reader.start()
            self._readers.append(reader)

    def follow(self) -> tuple[list[tuple[int, str]], int | None]:
        """Return new lines with their descriptors, soon or after a second; at the end, the code."""
        assert self._process is not None
        lines: list[tuple[int, str]] = []
        try:
            lines.append(self._said.get(timeout=1))
        except queue.Empty:
            code = self._process.poll()
        else:
            code = None
        if code is not None:
            for reader in self._readers:  # What it left behind may hold its output open.
                reader.join(timeout=1)
        while not self._said.empty():
            lines.append(self._said.get())
        return lines, code

    def send(self, number: int) -> None:
        """Send the process a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def _read(self, descriptor: int, stream: IO[str]) -> None:
        for line in stream:
            self._said.put((descriptor, line))
