"""Checkpoints that are whole or absent: staged, hashed, synced to disk, published by one rename.

A checkpoint is a folder of safetensors files, one for each part of the state, with `state.json` and
a manifest of hashes. Nothing in it is code. Only a folder under its final name counts; one that is
damaged is named and passed over for the newest whole one before it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bas_opd.errors import BasOpdError, CheckpointError
from bas_opd.run.manifest import (
    MANIFEST,
    STATE,
    published,
    read_json,
    read_manifest,
    sha256,
    verify_checkpoint,
)

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of a run between two steps, in host memory: tensors by part, and plain data."""

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    data: Mapping[str, Any]


def write_checkpoint(folder: Path, snapshot: Snapshot) -> Path:
    """Publish a snapshot under `folder`; what was published before stays whatever happens."""
    # Without its parents: a run directory that was deleted must not come back half empty.
    folder.mkdir(exist_ok=True)
    for leftover in folder.glob(".step-*"):
        # What is only to be removed may still be open elsewhere; it can wait.
        shutil.rmtree(leftover, ignore_errors=leftover.suffix == ".removed")
    target = folder / f"step-{snapshot.step:08d}"
    if target.exists():
        if is_whole(target):
            return target
        shutil.rmtree(target)
    staging = folder / f".{target.name}.partial"
    staging.mkdir()
    try:
        for part, tensors in snapshot.tensors.items():
            save_file(dict(tensors), staging / f"{part}.safetensors")
        _write_json(staging / STATE, {"step": snapshot.step, **snapshot.data})
        _write_json(staging / MANIFEST, _manifest(staging))
        for path in staging.iterdir():
            sync(path)
        sync(staging)
        os.rename(staging, target)
        sync(folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return target


def read_checkpoint(path: Path) -> Snapshot:
    """Load a checkpoint after comparing every byte of it with its manifest."""
    manifest = read_manifest(path)
    if manifest["schema_version"] > SCHEMA_VERSION:
        raise BasOpdError(
            f"The checkpoint {path} was written by a newer bas-opd (schema "
            f"{manifest['schema_version']}, known here: {SCHEMA_VERSION}). Install that version to "
            "go on."
        )
    verify_checkpoint(path)
    tensors = {}
    for file in sorted(path.glob("*.safetensors")):
        try:
            tensors[file.stem] = load_file(file)
        except SafetensorError as error:
            raise CheckpointError(f"{file} holds no safetensors: {error}.") from error
    data = read_json(path / STATE)
    return Snapshot(step=data.pop("step"), tensors=tensors, data=data)


def is_whole(path: Path) -> bool:
    """Say whether a checkpoint is what its manifest says."""
    try:
        verify_checkpoint(path)
    except CheckpointError:
        return False
    return True


def newest_whole(folder: Path, warn: Callable[[str], None]) -> Iterator[Snapshot]:
    """Yield whole snapshots, newest first, and say aloud which were passed over and why."""
    for path in published(folder):
        try:
            yield read_checkpoint(path)
        except CheckpointError as error:
            warn(f"{error} It is passed over for the one before it.")


def set_aside(folder: Path, *, after: int) -> None:
    """Rename the checkpoints later than a step: the run goes on without them, on another path."""
    for path in published(folder):
        if int(path.name.removeprefix("step-")) > after:
            number = 1
            while (target := folder / f"passed-over-{number}-{path.name}").exists():
                number += 1
            path.rename(target)


def retain(folder: Path, *, keep: int, keep_every: int | None) -> list[Path]:
    """Remove all but the newest `keep` checkpoints and those at multiples of `keep_every` steps."""
    removed = []
    for path in published(folder)[keep:]:
        step = int(path.name.removeprefix("step-"))
        if not (keep_every and step % keep_every == 0):
            # Renamed first: a kill in the middle must not leave half a checkpoint under its name.
            gone = path.rename(folder / f".{path.name}.removed")
            shutil.rmtree(gone, ignore_errors=True)
            removed.append(path)
    return removed


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _manifest(folder: Path) -> dict[str, Any]:
    files = {path.name: sha256(path) for path in sorted(folder.iterdir())}
    return {"schema_version": SCHEMA_VERSION, "files": files}


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
