"""Which model is evaluated: its folders, and hashes of every byte of its files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bas_opd.errors import ModelError
from bas_opd.files import hash_of
from bas_opd.model.base import model_folder
from bas_opd.model.folder import ADAPTER, SUFFIXES, local_folder, model_hashes
from bas_opd.run.directory import RunDirectory, changes
from bas_opd.run.history import read_outline


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The folder of a model, and of the LoRA adapters trained on top of it, if any."""

    folder: Path
    adapter: Path | None = None
    step: int | None = None
    """Steps that the run had taken, if it is the model of one."""
    recorded: Mapping[str, str] = field(default_factory=dict)
    """File -> hash as the run recorded them."""

    def hashes(self, *, memory: Path | None = None) -> dict[str, str]:
        """Return file name -> sha256; with adapters, the files of the base are named `base/...`."""
        files = model_hashes(self.folder, memory=memory)
        if self.adapter is not None:
            files = {f"base/{name}": each for name, each in files.items()}
            files |= model_hashes(self.adapter, memory=memory)
        if self.recorded and (other := changes(self.recorded, files)):
            raise ModelError(
                f"{next(iter(other))} in {self.adapter or self.folder} is not what the run "
                "recorded, so this is not the model that it trained. Restore the file, or evaluate "
                "the folder itself."
            )
        return files


def find_checkpoint(model: str) -> Checkpoint:
    """Return the model of a finished run, or of a model folder; either may hold adapters."""
    given = Path(model_folder(model)).expanduser()
    folder = given / "model" if (given / "model").is_dir() else given
    run = RunDirectory(path=given)
    if folder == run.model and run.records.is_file():
        return _trained(run)
    if (folder / ADAPTER).is_file():
        return Checkpoint(folder=_base_of(folder), adapter=folder)
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{given} is neither a finished run nor the folder of a model. For a run that has not "
            f"finished, `bas-opd export {given} OUT` writes its newest checkpoint as one."
        )
    return Checkpoint(folder=folder)


def _trained(run: RunDirectory) -> Checkpoint:
    """Return the final model of a run; one from before the run was prolonged is refused."""
    history = read_outline(run.path)
    if history.finished is None:
        raise ModelError(
            f"The run in {run.path} has not finished: it has taken {history.step_count} of "
            f"{history.planned} steps, and {run.model} is from before. Finish it, or evaluate what "
            f"`bas-opd export {run.path} OUT` writes; `bas-opd eval {run.model}` takes the old one."
        )
    saved = history.finished.model.items()
    recorded = {name: each for name, each in saved if name.endswith(SUFFIXES)}
    adapter = run.model if (run.model / ADAPTER).is_file() else None
    if adapter is not None:
        base = run.read_identity().base_files
        # Of an old run, the base is not known.
        recorded = recorded | {f"base/{name}": each for name, each in base.items()} if base else {}
    return Checkpoint(
        folder=run.model if adapter is None else _base_of(adapter),
        adapter=adapter,
        step=history.finished.steps,
        recorded=recorded,
    )


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
