"""Checkpoints that are complete or absent: staged, hashed, synced to disk, renamed into place.

A checkpoint is a folder of safetensors files, one for each part of the state and each process of
the run, with `state.json` and a manifest of checksums. Nothing in it is code. Only a folder under
its final name counts; a damaged one is reported and skipped for the newest intact one before it.

A process saves its rows of every parameter. The header of its files says where they begin, in the
words of torch.distributed.checkpoint, which can read them too. Any number of processes can resume:
each reads the rows it needs, from however many files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from bas_opd import disk
from bas_opd.compute.world import World
from bas_opd.errors import BasOpdError, CheckpointError
from bas_opd.files import sha256, write_json
from bas_opd.run.manifest import (
    MANIFEST,
    STATE,
    manifest_from,
    published,
    read_json,
    read_manifest,
    step_of,
    verify_checkpoint,
)

SCHEMA_VERSION = 1
HEADER = "DCP_SHARDING_INFO"
"""Key of a file's header: tensor -> where it begins in the whole one."""
PIECE = re.compile(r"(.+)-\d{5}-of-\d{5}")
"""Name of a file with the rows of one process."""

IsSpread = Callable[[str], bool]
"""Whether a tensor, by its name in a checkpoint, is spread over processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of a run between two steps, in host memory: tensors by part, and plain data.

    Tensors may be those that training goes on with; until they are written, it must not change
    them (`CheckpointWriter.settle`).

    Of several processes each has its own rows, and the leader what all hold alike.
    """

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    data: Mapping[str, Any]
    first_rows: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Part -> tensor -> the first row that this process has of it, where it has some of them."""


def write_checkpoint(
    folder: Path,
    snapshot: Snapshot,
    *,
    check: Callable[[], None] = lambda: None,
    world: World | None = None,
    read: Callable[[], None] = lambda: None,
) -> Path:
    """Publish a snapshot under `folder`; earlier checkpoints stay whatever happens.

    `check` raises if the folder is no longer the run's; it is called right before publication.
    `read` is called when the tensors are with the system and may change. All
    processes of a run write at once, and the leader publishes when all are done.
    """
    world = world or World()
    target = folder / f"step-{snapshot.step:08d}"
    staging = folder / f".{target.name}.partial"
    if not world.led(lambda: _prepare(folder, target, staging, check), writers=True):
        return target

    def publish(hashes: dict[str, str]) -> None:
        write_json(staging / STATE, {"step": snapshot.step, **snapshot.data})
        hashes[STATE] = sha256(staging / STATE)
        write_json(staging / MANIFEST, _manifest(hashes))
        disk.sync(staging)
        check()
        disk.rename(staging, target)
        disk.sync(folder)

    try:
        parts = world.together(lambda: _write_parts(staging, snapshot, world, read), writers=True)
        hashes = {name: each for part in parts for name, each in part.items()}
        world.led(lambda: publish(hashes), writers=True)
    except BaseException:
        if world.leads:
            disk.remove_tree(staging, ignore_errors=True)
        raise
    return target


def _prepare(folder: Path, target: Path, staging: Path, check: Callable[[], None]) -> bool:
    """Make a staging folder; return False if the checkpoint is there already."""
    check()
    # Without its parents: a run directory that was deleted must not come back half empty.
    disk.make_folder(folder, exist_ok=True)
    for leftover in folder.glob(".step-*"):
        # A checkpoint under removal may still be open elsewhere; it can wait.
        disk.remove_tree(leftover, ignore_errors=leftover.suffix == ".removed")
    if target.exists():
        if is_intact(target):
            return False
        disk.remove_tree(target)
    disk.make_folder(staging)
    return True


def _write_parts(
    staging: Path, snapshot: Snapshot, world: World, read: Callable[[], None]
) -> dict[str, str]:
    """Write the files of this process, and return their hashes."""
    files = []
    for part, tensors in snapshot.tensors.items():
        if not tensors and not world.leads:
            continue
        suffix = f"-{world.part + 1:05d}-of-{world.parts:05d}" if world.parts > 1 else ""
        file = staging / f"{part}{suffix}.safetensors"
        disk.by_library(file, save_file, dict(tensors), file, _header(part, snapshot))
        files.append(file)
    read()
    for file in files:
        disk.sync(file)
    return {file.name: sha256(file) for file in files}


def _manifest(hashes: Mapping[str, str]) -> dict[str, Any]:
    return manifest_from(hashes, schema_version=SCHEMA_VERSION)


def _header(part: str, snapshot: Snapshot) -> dict[str, str] | None:
    firsts = snapshot.first_rows.get(part)
    if not firsts:
        return None
    offsets = {  # In order, so that equal states are equal bytes.
        name: {"saved_offsets": [firsts.get(name, 0)] + [0] * (tensor.dim() - 1)}
        for name, tensor in sorted(snapshot.tensors[part].items())
    }
    return {HEADER: json.dumps(offsets)}


def read_checkpoint(path: Path) -> Snapshot:
    """Load a checkpoint after comparing every byte of it with its manifest."""
    verify_readable(path)
    return load_checkpoint(path)


def verify_readable(path: Path) -> None:
    """Raise unless this version can read the checkpoint, and it is what its manifest says."""
    manifest = read_manifest(path)
    if manifest["schema_version"] > SCHEMA_VERSION:
        raise BasOpdError(
            f"The checkpoint {path} was written by a newer bas-opd (schema "
            f"{manifest['schema_version']}, known here: {SCHEMA_VERSION}). Install that version to "
            "resume."
        )
    verify_checkpoint(path)
    _read_state(path)
    for file in sorted(path.glob("*.safetensors")):
        try:
            disk.by_library(file, _open_safetensors, file)
        except SafetensorError as error:
            raise CheckpointError(f"{file} holds no safetensors: {error}.") from error


def _open_safetensors(file: Path) -> None:
    with safe_open(file, framework="pt"):
        pass


def load_checkpoint(
    path: Path, world: World | None = None, is_spread: IsSpread = lambda _: False
) -> Snapshot:
    """Load a verified checkpoint: what is spread over processes, as far as it is this one's."""
    world = world or World()
    files: dict[str, list[Path]] = {}
    for file in sorted(path.glob("*.safetensors")):
        piece = PIECE.fullmatch(file.stem)
        files.setdefault(piece[1] if piece else file.stem, []).append(file)
    tensors = {}
    for part, pieces in files.items():
        try:
            if world.size == 1 and pieces[0].stem == part:
                tensors[part] = disk.by_library(pieces[0], load_file, pieces[0])
            else:
                read = partial(_read_pieces, pieces, world, is_spread)
                tensors[part] = disk.by_library(pieces[0], read)
        except SafetensorError as error:
            raise CheckpointError(f"{pieces[0]} holds no safetensors: {error}.") from error
    data = _read_state(path)
    return Snapshot(step=data.pop("step"), tensors=tensors, data=data)


def _read_state(path: Path) -> dict[str, Any]:
    data = read_json(path / STATE)
    if type(data.get("step")) is not int or not isinstance(data.get("ledger"), dict):
        raise CheckpointError(f"{path / STATE} is not the state of a run.")
    return data


def _read_pieces(files: list[Path], world: World, is_spread: IsSpread) -> dict[str, Tensor]:
    """Read every tensor of a part from the files of however many processes."""
    found: dict[str, list[tuple[int, Any]]] = {}
    with ExitStack() as stack:
        for file in files:
            opened: Any = stack.enter_context(safe_open(file, framework="pt"))
            header = json.loads((opened.metadata() or {}).get(HEADER, "{}"))
            for name in opened.keys():  # noqa: SIM118 (it is no mapping)
                first = (header.get(name, {}).get("saved_offsets") or [0])[0]
                found.setdefault(name, []).append((first, opened.get_slice(name)))
        return {
            name: _read_rows(name, pieces, world if is_spread(name) else World(), files[0])
            for name, pieces in sorted(found.items())
        }


def _read_rows(name: str, pieces: list[tuple[int, Any]], world: World, file: Path) -> Tensor:
    shapes = [piece.get_shape() for _, piece in pieces]
    if not shapes[0]:
        return pieces[0][1][...]
    ends = [first + shape[0] for (first, _), shape in zip(pieces, shapes, strict=True)]
    rows = max(ends)
    if sum(shape[0] for shape in shapes) != rows:
        raise CheckpointError(f"{file.parent} does not hold all rows of {name}, or some twice.")
    start, stop = world.rows_of(rows)
    parts = []
    for (first, piece), end in sorted(zip(pieces, ends, strict=True), key=lambda each: each[1]):
        low, high = max(start, first), min(stop, end)
        if low < high:
            parts.append(piece[low - first : high - first])
    return torch.cat(parts) if parts else pieces[0][1][0:0]


def is_intact(path: Path) -> bool:
    """Return whether a checkpoint is what its manifest says."""
    try:
        verify_checkpoint(path)
    except CheckpointError:
        return False
    return True


def newest_intact(folder: Path, warn: Callable[[str], None]) -> Iterator[Snapshot]:
    """Yield intact snapshots, newest first; warn about each that is skipped, and why."""
    for path in intact_paths(folder, warn):
        yield load_checkpoint(path)


def intact_paths(folder: Path, warn: Callable[[str], None]) -> Iterator[Path]:
    """Yield intact checkpoints, newest first; warn about each that is skipped, and why."""
    for path in published(folder):
        try:
            verify_readable(path)
        except CheckpointError as error:
            warn(f"{error} It is skipped for the one before it.")
        else:
            yield path


def set_aside(folder: Path, *, after: int) -> None:
    """Rename the checkpoints after a step: the run continues from there on another path."""
    for path in published(folder):
        if step_of(path) > after:
            number = 1
            while (target := folder / f"passed-over-{number}-{path.name}").exists():
                number += 1
            disk.rename(path, target)


def retain(
    folder: Path, *, keep: int, keep_every: int | None, best: int | None = None
) -> list[Path]:
    """Remove all but the newest `keep`, those at multiples of `keep_every` steps, and the best."""
    removed = []
    for path in published(folder)[keep:]:
        step = step_of(path)
        if step != best and not (keep_every and step % keep_every == 0):
            # Renamed first: a kill in the middle must not leave half a checkpoint under its name.
            gone = folder / f".{path.name}.removed"
            disk.rename(path, gone)
            disk.remove_tree(gone, ignore_errors=True)
            removed.append(path)
    return removed


class CheckpointWriter:
    """One checkpoint at a time, in a thread; a failure is raised at the next call."""

    def __init__(
        self,
        folder: Path,
        *,
        keep: int,
        keep_every: int | None,
        check: Callable[[], None] = lambda: None,
        world: World | None = None,
    ) -> None:
        self.folder = folder
        self.world = world or World()
        self.check = check
        self.keep = keep
        self.keep_every = keep_every
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        self._read = Event()
        self._read.set()

    def submit(self, snapshot: Snapshot, *, best: int | None = None) -> None:
        """Start to write a snapshot, after the one before it is done; keep that of step `best`."""
        self.wait()
        self._read.clear()
        self._pending = self._thread.submit(self._write, snapshot, best)

    def settle(self) -> None:
        """Return when no tensor of a snapshot is left to read; some may be those in use."""
        self._read.wait()

    def wait(self) -> None:
        """Return when nothing is left to write."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the last write: none may follow after the run has released its lock."""
        self._thread.shutdown(wait=True)

    def _write(self, snapshot: Snapshot, best: int | None) -> None:
        def drop_old() -> None:
            self.check()
            retain(self.folder, keep=self.keep, keep_every=self.keep_every, best=best)

        try:
            write_checkpoint(
                self.folder, snapshot, check=self.check, world=self.world, read=self._read.set
            )
        finally:
            self._read.set()
        self.world.led(drop_old, writers=True)
