"""The processes of a run: how they join, and that they agree."""

from __future__ import annotations

import platform
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from bas_opd.compute.memory import free_host_memory
from bas_opd.compute.world import World, launched, launched_here
from bas_opd.config.loading import config_hash
from bas_opd.config.schema import Config
from bas_opd.data.records import MANIFEST, PreparedSet
from bas_opd.errors import ConfigError
from bas_opd.files import hash_of
from bas_opd.model.folder import local_folder, model_hashes
from bas_opd.run.directory import RunDirectory, changes
from bas_opd.run.footprint import wants_gpu
from bas_opd.run.lock import NAME as OWNER
from bas_opd.run.packages import package_versions
from bas_opd.text import counted, listed

T = TypeVar("T")


@contextmanager
def joined(config: Config) -> Iterator[World]:
    """Join the processes that torchrun started for a run, if there are several."""
    is_gpu, (rank, _) = wants_gpu(config), launched()
    facts = {
        "python": platform.python_version(),
        "packages": package_versions(),
        "devices": "GPU" if is_gpu else "CPU",
        "settings": config_hash(config),
        "host": socket.gethostname(),
    }
    with World.joined(
        "cuda" if is_gpu else "cpu",
        timeout_minutes=config.shard.timeout_minutes,
        facts=facts,
        check=lambda leaders: _compare(rank, leaders, facts),
    ) as world:
        world.led(lambda: _check_size(config, world.size, is_gpu=is_gpu))
        yield world.replicated(config.shard.replicas)


def _check_size(config: Config, size: int, *, is_gpu: bool) -> None:
    if is_gpu and size > 1 and config.model.device not in ("auto", "cuda"):
        raise ConfigError(
            f"model.device is {config.model.device}, but each of {size} processes needs a GPU of "
            "its own. Set model.device=auto."
        )
    check_groups(config, size)
    if (size > 1 or config.shard.always) and config.rollout.overlap:
        how = f"there are {size}" if size > 1 else "shard.always is true"
        raise ConfigError(
            f"rollout.overlap is true, which works with one process only, and {how}: two threads "
            "of a process cannot both exchange weights with others. Set rollout.overlap=false; "
            "rollout.ahead works with several."
        )


def check_groups(config: Config, size: int) -> None:
    """Refuse processes that cannot be cut into the groups that are asked for."""
    if size % config.shard.replicas:
        raise ConfigError(
            f"shard.replicas is {config.shard.replicas}, which does not cut {size} processes into "
            "equal groups. Use a divisor of their number, such as the number of machines."
        )


@contextmanager
def held(path: Path, world: World) -> Iterator[RunDirectory]:
    """Lock the directory on the leader; the other ranks know its place only."""
    run = RunDirectory(path=path)
    with ExitStack() as held:

        def lock() -> None:
            nonlocal run
            run = held.enter_context(RunDirectory.held(path))

        world.led(lock)
        yield run


def check_ranks(identity: Mapping[str, Any], run: RunDirectory, world: World) -> None:
    """Refuse ranks that have other kernels or data, or see another file system."""

    def facts() -> dict[str, Any]:
        owner = run.path / OWNER
        return {
            "kernels": identity["environment"].get("triton", False),
            "data": [identity["dataset"]["fingerprint"], identity["dataset"]["examples"]],
            "run directory": owner.read_text("utf-8") if owner.exists() else "absent",
            "host": socket.gethostname(),
        }

    first, *others = world.together(facts)

    def compare() -> None:
        for rank, other in enumerate(others, start=1):
            _compare(rank, first, other, run.path)

    world.led(compare)


def check_machines(
    models: Mapping[str, Mapping[str, str]],
    data: PreparedSet,
    pictures: str,
    altered: Mapping[str, str],
    run: RunDirectory,
    world: World,
) -> None:
    """Refuse machines whose files of a model, or whose pictures, are not the leader's.

    The leader has these `models`, as folder -> file -> SHA-256. Its `pictures` are given by the
    hash of all their hashes, and by the SHA-256 of those that are not as they were prepared.

    Each rank keeps its rows of the model that it loads: of two models they would make a third one.
    One process of each machine reads every byte, once as long as the files are not written to.
    """
    machine = socket.gethostname()
    memory = run.hashes_on(machine)

    def compare() -> tuple[str, str] | None:
        """Return what is another one on this machine, and the names of its files."""
        if world.leads or world.local_rank:
            return None
        for path, hashes in models.items():
            if other := changes(hashes, model_hashes(local_folder(path), memory=memory)):
                return f"the model {path}", ", ".join(other)
        own = data.picture_hashes(memory=memory)
        if hash_of(own) == pictures:
            return None
        name, *others = changes({**data.prepared_hashes, **altered}, own) or [MANIFEST]
        also = f", and {counted(len(others), 'other file')}" if others else ""
        return f"the data {data.folder}", f"{name}{also}"

    hosts = world.gather(machine)
    found = {rank: each for rank, each in enumerate(world.together(compare)) if each}

    def refuse() -> None:
        if not found:
            return
        first, *others = found
        what, names = found[first]
        also = f" Files on {listed([hosts[rank] for rank in others])} differ too." if others else ""
        raise ConfigError(
            f"Rank {first} on {hosts[first]} has other files of {what} than the leader on "
            f"{hosts[0]}: {names}.{also} Give all machines the same files."
        )

    world.led(refuse)


def in_turns(world: World, load: Callable[[], T], *, needs: int, keeps: int = 0) -> T:
    """Load a model on as many ranks of each machine at a time as its host memory has room for.

    A process `needs` so many bytes of it while it loads, of which it `keeps` some.
    """
    here, free = launched_here(), free_host_memory()
    at_once = here
    if free is not None:
        at_once = max(1, (free - here * keeps) // max(1, needs - keeps))
    # Together: a rank that has failed before tells its error here.
    turns = max(world.together(lambda: -(-here // at_once)))
    own: list[T] = []
    for turn in range(turns):
        is_mine = world.local_rank % turns == turn
        world.together(lambda is_mine=is_mine: own.append(load()) if is_mine else None)
    return own[0]


def _compare(
    rank: int, first: Mapping[str, Any], other: Mapping[str, Any], path: Path | None = None
) -> None:
    """Refuse a rank that differs from the leader."""
    for what in first:
        if what != "host" and other[what] != first[what]:
            raise ConfigError(_apart(what, rank, first, other, path))


def _apart(
    what: str, rank: int, first: Mapping[str, Any], other: Mapping[str, Any], path: Path | None
) -> str:
    """Return the sentence about a rank that differs from the leader."""
    place = f"Rank {rank} on {other['host']}"
    if what == "run directory":
        return (
            f"{place} does not see {path} as the leader on {first['host']} does. Put run.output on "
            "a file system that all machines share."
        )
    shown = ""
    if what == "packages":
        names = first[what].keys() | other[what].keys()
        shown = ": " + ", ".join(
            f"{name} {other[what].get(name, 'absent')} where the leader has "
            f"{first[what].get(name, 'absent')}"
            for name in sorted(names)
            if first[what].get(name) != other[what].get(name)
        )
    elif what in ("python", "devices", "kernels"):
        shown = f": {other[what]} where the leader has {first[what]}"
    return (
        f"{place} has other {what} than the leader on {first['host']}{shown}. Give all processes "
        "the same environment, command and files."
    )
