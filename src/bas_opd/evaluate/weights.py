"""Which model is evaluated: its folders, and hashes of every byte of its files."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from bas_opd.errors import ModelError
from bas_opd.files import hash_of, sha256, write_text
from bas_opd.model.base import model_folder

SUFFIXES = (".safetensors", ".json", ".jinja", ".txt")
"""Tensors, settings, chat template and tokenizer: the files that define a model."""

ADAPTER = "adapter_config.json"

_HASHES = TypeAdapter(dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The folder of a model, and of the LoRA adapters trained on top of it, if any."""

    folder: Path
    adapter: Path | None = None

    def hashes(self, *, memory: Path | None = None) -> dict[str, str]:
        """Return file name -> sha256; with adapters, the files of the base are named `base/...`."""
        files = weights_hashes(self.folder, memory=memory)
        if self.adapter is None:
            return files
        base = {f"base/{name}": each for name, each in files.items()}
        return base | weights_hashes(self.adapter, memory=memory)


def find_checkpoint(model: str) -> Checkpoint:
    """Return the model of a finished run, or of a model folder; either may hold adapters."""
    given = Path(model_folder(model)).expanduser()
    folder = given / "model" if (given / "model").is_dir() else given
    if (folder / ADAPTER).is_file():
        return Checkpoint(folder=_base_of(folder), adapter=folder)
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{given} is neither a finished run nor the folder of a model. For a run that has not "
            f"finished, `bas-opd export {given} OUT` writes its newest checkpoint as one."
        )
    return Checkpoint(folder=folder)


def weights_hashes(folder: Path, *, memory: Path | None = None) -> dict[str, str]:
    """Return file name -> sha256 of a checkpoint's tensors, its configuration and its processor.

    Every byte is read, gigabytes too: two checkpoints may differ in one row of one tensor. Hashes
    are kept in the file `memory` and reused as long as the files are not written to.
    """
    if not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"There are no weights (*.safetensors) in {folder}, and pickled ones (*.bin) are not "
            "loaded. Name a finished run, or the folder of a model."
        )
    files = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    known: dict[str, str] = {}
    if memory is not None:
        with suppress(FileNotFoundError, ValidationError):
            known = _HASHES.validate_json(memory.read_bytes())
    states = [_state(path) for path in files]
    with ThreadPoolExecutor() as pool:
        hashes = list(pool.map(lambda path, at: known.get(at) or sha256(path), files, states))
    new = {
        before: each
        for path, before, each in zip(files, states, hashes, strict=True)
        if before not in known and _state(path) == before
    }
    if memory is not None and new:
        write_text(memory, _HASHES.dump_json(known | new, indent=1).decode() + "\n")
    return {path.name: each for path, each in zip(files, hashes, strict=True)}


def weights_fingerprint(hashes: Mapping[str, str]) -> str:
    """Return one hash for those of all files."""
    return hash_of({"files": dict(hashes)})


def base_folder(base: str) -> Path:
    """Return the folder of a model that a run started from, from disk or the hub."""
    try:
        return _local_folder(base)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"The base model {base} was not found ({reason}). Restore it, or evaluate it where it "
            "is with `bas-opd eval FOLDER`."
        ) from error


def _local_folder(base: str) -> Path:
    """Return the folder of a model; the hub's library raises errors of a dozen kinds."""
    folder = Path(model_folder(base))
    if folder.is_dir():
        return folder
    hub = importlib.import_module("huggingface_hub")
    return Path(hub.snapshot_download(base, allow_patterns=[f"*{each}" for each in SUFFIXES]))


def _base_of(adapter: Path) -> Path:
    """Return the folder of the model that adapters were trained from."""
    base = "?"
    try:
        base = str(json.loads((adapter / ADAPTER).read_bytes())["base_model_name_or_path"])
        return _local_folder(base)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"The base model {base} of the adapters in {adapter} was not found ({reason}). Restore "
            "it, or merge them with `bas-opd export RUN OUT --base FOLDER` and evaluate OUT."
        ) from error


def _state(path: Path) -> str:
    """Return a hash that changes whenever the file does: of its path, its size and its times.

    The modification time can be set back, as copying does; the time of the last change cannot.
    """
    stat = path.stat()
    return hash_of(
        {
            "path": str(path.resolve()),
            "size": stat.st_size,
            "mtime_ns": stat.st_mtime_ns,
            "ctime_ns": stat.st_ctime_ns,
        }
    )
