"""The folder of a model: where it is, the files that define it, and that none is a pickle.

Needs neither torch nor transformers.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bas_opd.errors import BasOpdError, ModelError
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
            f"The model folder {path} does not exist. Name a folder with a checkpoint, a "
            "hub id such as Qwen/Qwen3.5-4B, or small."
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


SETTINGS = ("config.json", "preprocessor_config.json", "processor_config.json")
COUNTS = (
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "num_heads", "depth"),
    *("hidden_size", "head_dim", "intermediate_size", "out_hidden_size", "vocab_size"),
    *("max_position_embeddings", "num_position_embeddings", "in_channels", "in_chans"),
    *("patch_size", "temporal_patch_size", "spatial_merge_size", "merge_size"),
    *("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim"),
    *("linear_value_head_dim", "linear_conv_kernel_dim", "full_attention_interval"),
)
"""Settings that are positive integers wherever they stand."""
TOKEN_ID = "_token_id"


def check_settings(folder: Path) -> None:
    """Raise if a setting of a model cannot be meant, with its file and its name.

    Transformers takes any value, and fails later with an error that names neither.
    """
    for name in SETTINGS:
        if (folder / name).exists():
            for place, value, wanted in _odd_settings(_object(folder / name)):
                raise ModelError(
                    f"{folder / name} has {value!r} for {place}, where {wanted} is expected. "
                    "Restore the file from its source."
                )


def _odd_settings(
    settings: Mapping[str, Any], place: str = ""
) -> Iterator[tuple[str, object, str]]:
    """Yield the place and value of each setting that is odd, and what is expected there."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _odd_settings(value, f"{place}{name}.")
        elif name in COUNTS and value is not None and (type(value) is not int or value < 1):
            yield f"{place}{name}", value, "a positive integer"
        elif name.endswith(TOKEN_ID) and value is not None:
            ids = value if isinstance(value, list) else [value]
            least = -1 if name == f"pad{TOKEN_ID}" else 0  # Some models say so that they have none.
            if not all(type(each) is int and each >= least for each in ids):
                yield f"{place}{name}", value, "the number of a token"


@contextmanager
def explained(folder: str | Path, what: str) -> Iterator[None]:
    """Turn what a library raises about files of a model into an error that names them."""
    try:
        yield
    except (BasOpdError, MemoryError):
        raise
    except Exception as error:  # Its own checks are few: errors of any kind come from deep inside.
        cause = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"The {what} of {folder} cannot be used ({type(error).__name__}: {cause}). Restore it "
            "from its source."
        ) from error


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
