"""Checkpoints that are complete or absent: staged, hashed, synced to disk, renamed into place.

A checkpoint is a folder of safetensors files, one for each part of the state, with `state.json` and
a manifest of checksums. Nothing in it is code. Only a folder under its final name counts; a damaged
one is reported and skipped for the newest intact one before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bas_opd import disk
from bas_opd.errors import BasOpdError, CheckpointError
from bas_opd.files import write_json
from bas_opd.run.manifest import (
    MANIFEST,
    STATE,
    manifest_of,
    published,
    read_json,
    read_manifest,
    step_of,
    verify_checkpoint,
)

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of a run between two steps, in host memory: tensors by part, and plain data."""

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    data: Mapping[str, Any]


def write_checkpoint(
    folder: Path, snapshot: Snapshot, *, check: Callable[[], None] = lambda: None
) -> Path:
    """Publish a snapshot under `folder`; earlier checkpoints stay whatever happens.

    `check` raises if the folder is no longer the run's; it is called right before publication.
    """
    check()
    # Without its parents: a run directory that was deleted must not come back half empty.
    disk.make_folder(folder, exist_ok=True)
    for leftover in folder.glob(".step-*"):
        # A checkpoint under removal may still be open elsewhere; it can wait.
        disk.remove_tree(leftover, ignore_errors=leftover.suffix == ".removed")
    target = folder / f"step-{snapshot.step:08d}"
    if target.exists():
        if is_intact(target):
            return target
        disk.remove_tree(target)
    staging = folder / f".{target.name}.partial"
    disk.make_folder(staging)
    try:
        for part, tensors in snapshot.tensors.items():
            file = staging / f"{part}.safetensors"
            disk.by_library(file, save_file, dict(tensors), file)
        write_json(staging / STATE, {"step": snapshot.step, **snapshot.data})
        write_json(staging / MANIFEST, manifest_of(staging, schema_version=SCHEMA_VERSION))
        for path in staging.iterdir():
            disk.sync(path)
        disk.sync(staging)
        check()
        disk.rename(staging, target)
        disk.sync(folder)
    except BaseException:
        disk.remove_tree(staging, ignore_errors=True)
        raise
    return target


def read_checkpoint(path: Path) -> Snapshot:
    """Load a checkpoint after comparing every byte of it with its manifest."""
    manifest = read_manifest(path)
    if manifest["schema_version"] > SCHEMA_VERSION:
        raise BasOpdError(
            f"The checkpoint {path} was written by a newer bas-opd (schema "
            f"{manifest['schema_version']}, known here: {SCHEMA_VERSION}). Install that version to "
            "resume."
        )
    verify_checkpoint(path)
    tensors = {}
    for file in sorted(path.glob("*.safetensors")):
        try:
            tensors[file.stem] = disk.by_library(file, load_file, file)
        except SafetensorError as error:
            raise CheckpointError(f"{file} holds no safetensors: {error}.") from error
    data = read_json(path / STATE)
    step = data.pop("step", None)
    if type(step) is not int or not isinstance(data.get("ledger"), dict):
        raise CheckpointError(f"{path / STATE} is not the state of a run.")
    return Snapshot(step=step, tensors=tensors, data=data)


def is_intact(path: Path) -> bool:
    """Return whether a checkpoint is what its manifest says."""
    try:
        verify_checkpoint(path)
    except CheckpointError:
        return False
    return True


def newest_intact(folder: Path, warn: Callable[[str], None]) -> Iterator[Snapshot]:
    """Yield intact snapshots, newest first; warn about each that is skipped, and why."""
    for path in published(folder):
        try:
            yield read_checkpoint(path)
        except CheckpointError as error:
            warn(f"{error} It is skipped for the one before it.")


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
    ) -> None:
        self.folder = folder
        self.check = check
        self.keep = keep
        self.keep_every = keep_every
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def submit(self, snapshot: Snapshot, *, best: int | None = None) -> None:
        """Start to write a snapshot, after the one before it is done; keep that of step `best`."""
        self.wait()
        self._pending = self._thread.submit(self._write, snapshot, best)

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
        write_checkpoint(self.folder, snapshot, check=self.check)
        self.check()
        retain(self.folder, keep=self.keep, keep_every=self.keep_every, best=best)
