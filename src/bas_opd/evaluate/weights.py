"""Which model is evaluated: its folders, and hashes of every byte of its files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bas_opd.errors import ModelError
from bas_opd.files import hash_of
from bas_opd.model.base import model_folder
from bas_opd.model.folder import ADAPTER, local_folder, model_hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The folder of a model, and of the LoRA adapters trained on top of it, if any."""

    folder: Path
    adapter: Path | None = None

    def hashes(self, *, memory: Path | None = None) -> dict[str, str]:
        """Return file name -> sha256; with adapters, the files of the base are named `base/...`."""
        files = model_hashes(self.folder, memory=memory)
        if self.adapter is None:
            return files
        base = {f"base/{name}": each for name, each in files.items()}
        return base | model_hashes(self.adapter, memory=memory)


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


def weights_fingerprint(hashes: Mapping[str, str]) -> str:
    """Return one hash for those of all files."""
    return hash_of({"files": dict(hashes)})


def _base_of(adapter: Path) -> Path:
    """Return the folder of the model that adapters were trained from."""
    base = "?"
    try:
        base = str(json.loads((adapter / ADAPTER).read_bytes())["base_model_name_or_path"])
        return local_folder(base)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(
            f"The base model {base} of the adapters in {adapter} was not found ({error}) Restore "
            "it, or merge them with `bas-opd export RUN OUT --base FOLDER` and evaluate OUT."
        ) from error
