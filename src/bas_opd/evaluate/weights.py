"""Which model it is: told from every byte of its files, without loading any of them."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from bas_opd.errors import ModelError
from bas_opd.evaluate.store import key_of, write_whole
from bas_opd.run.manifest import sha256

SUFFIXES = (".safetensors", ".json", ".jinja", ".txt")
"""Tensors, settings, chat template and tokenizer: what makes a model the one it is."""

_HASHES = TypeAdapter(dict[str, str])


def weights_hashes(folder: Path, *, memory: Path | None = None) -> dict[str, str]:
    """Return file name -> sha256 of a checkpoint's tensors, its configuration and its processor.

    All of them are read, gigabytes too: two checkpoints may differ in one row of one tensor. What
    was read once is remembered in `memory`, as long as nothing has written to the file since.
    """
    if not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"There are no weights (*.safetensors) in {folder}. Name a run that has finished, or "
            "the folder of a model."
        )
    files = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    known = {} if memory is None else _remembered(memory)
    states = [_state(path) for path in files]
    with ThreadPoolExecutor() as crew:
        hashes = list(crew.map(lambda path, at: known.get(at) or sha256(path), files, states))
    learnt = {
        before: each
        for path, before, each in zip(files, states, hashes, strict=True)
        if before not in known and _state(path) == before
    }
    if memory is not None and learnt:
        write_whole(memory, _HASHES.dump_json(known | learnt, indent=1).decode() + "\n")
    return {path.name: each for path, each in zip(files, hashes, strict=True)}


def weights_fingerprint(hashes: Mapping[str, str]) -> str:
    """Return one hash for those of all files."""
    return key_of(files=dict(hashes))


def _state(path: Path) -> str:
    """Return what changes whenever the file does: its place, its size, and when it was written.

    The time of writing can be set back, as copying does; that of the last change cannot.
    """
    stat = path.stat()
    return key_of(
        path=str(path.resolve()),
        size=stat.st_size,
        mtime_ns=stat.st_mtime_ns,
        ctime_ns=stat.st_ctime_ns,
    )


def _remembered(memory: Path) -> dict[str, str]:
    try:
        return _HASHES.validate_json(memory.read_bytes())
    except (FileNotFoundError, ValidationError):
        return {}
