"""The folder of a model: where it is, the files that define it, and that none is a pickle.

Needs neither torch nor transformers.
"""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

from bas_opd.errors import ModelError
from bas_opd.files import file_hashes
from bas_opd.model.base import model_folder

TENSORS = ".safetensors"
SUFFIXES = (TENSORS, ".json", ".jinja", ".txt")
"""Tensors, settings, chat template and tokenizer: the files that define a model."""
ADAPTER = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_SHARD = re.compile(r"\w[\w.-]*\.safetensors")


def local_folder(path: str | Path, *, has_tensors: bool = True) -> Path:
    """Return the folder of a model; one on the hub is downloaded, without its code and pickles.

    Without tensors it may be incomplete. Transformers could download too, but where the hub cannot
    be reached it retries for half a minute for each file.
    """
    folder = Path(model_folder(path)).expanduser()
    if folder.is_dir():
        return folder
    if not _HUB_ID.fullmatch(str(path)):
        raise ModelError(
            f"The model folder {path} does not exist. Set model.path to a folder with a "
            "checkpoint, to a hub id such as Qwen/Qwen3.5-4B, or to small."
        )
    files = [f"*{suffix}" for suffix in SUFFIXES if has_tensors or suffix != TENSORS]
    try:
        hub = importlib.import_module("huggingface_hub")
        return Path(hub.snapshot_download(str(path), allow_patterns=files))
    except Exception as error:  # The hub's library raises errors of a dozen kinds.
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"The model {path} was not found ({reason}). Check its name and the network, or give a "
            "folder with a checkpoint."
        ) from error


def model_hashes(folder: Path, *, memory: Path | None = None) -> dict[str, str]:
    """Return file name -> sha256 of a checkpoint's tensors, its configuration and its processor.

    Every byte is read, gigabytes too: two checkpoints may differ in one row of one tensor. Hashes
    are kept in the file `memory`, see `file_hashes`.
    """
    if not any(folder.glob("*.safetensors")):
        raise no_weights(folder)
    files = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    return file_hashes({path.name: path for path in files}, memory=memory)


def no_weights(path: str | Path) -> ModelError:
    """Return the error for a model without weights that may be read."""
    return ModelError(
        f"No safetensors weights could be read from {path}. Pickled weights (*.bin) are not "
        "loaded, since they can run code: convert them with save_pretrained, or check that "
        "the download is complete."
    )


def check_folder(folder: Path) -> None:
    """Raise unless a model's folder makes transformers open safetensors inside it and no more."""
    if (folder / ADAPTER).exists():
        raise ModelError(
            f"{folder} holds adapters ({ADAPTER}) beside a model, and they would be loaded into "
            "it. Remove them, or merge them with `bas-opd export`."
        )
    for index in folder.glob("*.index.json"):
        shards = _object(index).get("weight_map")
        names = set(map(str, shards.values())) if isinstance(shards, dict) else {""}
        for name in sorted(names):
            if not _SHARD.fullmatch(name):
                raise ModelError(
                    f"{index} names the weights {name!r}, which is no safetensors file of this "
                    "folder. Anything else can run code and is not opened: restore the folder from "
                    "its source."
                )


def check_adapter(folder: Path) -> None:
    """Raise unless a folder makes peft open LoRA adapters in safetensors and no more."""
    # Without this file, peft would fall back to pickled weights.
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise ModelError(
            f"There is no {ADAPTER_WEIGHTS} in {folder}. Pickled adapters (*.bin) are not loaded, "
            "since they can run code: save them again with safe_serialization=True."
        )
    settings = _object(folder / ADAPTER)
    # The latter names a module for peft to import.
    if settings.get("peft_type") != "LORA" or settings.get("megatron_config"):
        raise ModelError(
            f"{folder / ADAPTER} does not describe plain LoRA adapters, and no others are loaded. "
            "Use the adapters that a run has saved."
        )


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read ({error}). Restore the file.") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object. Restore the file.")
    return value
