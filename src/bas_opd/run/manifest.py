"""The manifest of a checkpoint: which files it has, with their checksums.

A wrong or missing file is damage, a `CheckpointError`. A file that cannot be read is not known to
be damaged: its `OSError` is passed on, so that nothing is decided from it.

Needs neither torch nor safetensors, so that a run can be checked where nothing can be trained.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bas_opd import disk
from bas_opd.errors import CheckpointError
from bas_opd.files import hash_of, sha256

MANIFEST = "manifest.json"
CHECKSUM = "checksum"
STATE = "state.json"
NAME = re.compile(r"step-(\d{8})")


def step_of(checkpoint: Path) -> int:
    """Return the step that a checkpoint's name says."""
    return int(checkpoint.name.removeprefix("step-"))


def published(folder: Path) -> list[Path]:
    """Return the checkpoints under a folder, newest first."""
    try:
        return sorted((p for p in folder.iterdir() if NAME.fullmatch(p.name)), reverse=True)
    except (FileNotFoundError, NotADirectoryError):
        return []


def verify_checkpoint(path: Path) -> None:
    """Raise unless the folder holds exactly the files of its manifest, byte for byte."""
    verify_files(path, read_manifest(path)["files"], besides={MANIFEST})


def manifest_of(folder: Path, *, schema_version: int) -> dict[str, Any]:
    """Return the manifest of the files in a folder."""
    files = {path.name: sha256(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST}
    return manifest_from(files, schema_version=schema_version)


def manifest_from(files: Mapping[str, str], *, schema_version: int) -> dict[str, Any]:
    """Return the manifest of files by their hashes."""
    manifest = {"schema_version": schema_version, "files": dict(sorted(files.items()))}
    return {**manifest, CHECKSUM: hash_of(manifest)}


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint: its schema version, and its files with their hashes.

    Its checksum tells a damaged version from a newer one; manifests of version 0.1 have none.
    """
    manifest = read_json(folder / MANIFEST)
    expected = hash_of({key: value for key, value in manifest.items() if key != CHECKSUM})
    if manifest.get(CHECKSUM, expected) != expected:
        raise CheckpointError(f"{folder} is damaged: {MANIFEST} has changed.")
    version, files = manifest.get("schema_version"), manifest.get("files")
    if type(version) is not int or not isinstance(files, dict):
        raise CheckpointError(f"{folder / MANIFEST} is not the manifest of a checkpoint.")
    return manifest


def verify_files(
    folder: Path, hashes: Mapping[str, str], *, besides: frozenset[str] | set[str] = frozenset()
) -> None:
    """Raise unless the folder holds exactly the named files, byte for byte, and those besides."""
    try:
        found = {file.name for file in folder.iterdir()} - besides
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(f"{folder} is missing: {error.strerror}.") from error
    if found != set(hashes):
        odd = ", ".join(sorted(found ^ set(hashes)))
        raise CheckpointError(f"{folder} lacks or adds files: {odd}.")
    for name, digest in hashes.items():
        try:
            found_digest = sha256(folder / name)
        except (FileNotFoundError, IsADirectoryError):
            found_digest = ""
        if found_digest != digest:
            raise CheckpointError(f"{folder} is damaged: {name} has changed.")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object that a small file holds."""
    try:
        value = json.loads(disk.read_file(path).decode())
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is not a JSON object.")
    return value
