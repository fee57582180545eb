"""Supported checkpoints: a local folder or a hub id, of a known architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from transformers import AutoConfig, PreTrainedConfig

from bas_opd.errors import ModelError
from bas_opd.model.folder import check_settings, local_folder

Family = Literal["qwen3_5", "qwen3_vl", "qwen2_5_vl"]


def checkpoint_config(path: str | Path) -> PreTrainedConfig:
    """Read the configuration of a checkpoint; raise an error if it is missing or unsupported."""
    folder = local_folder(path, has_tensors=False)
    check_settings(folder)
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # Transformers checks little: errors of any kind come from inside.
        cause = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"No usable model configuration was found at {path}: {cause} "
            "Name a folder that holds config.json, or a hub id."
        ) from error
    if config.model_type not in get_args(Family):
        raise ModelError(
            f"The model at {path} has the architecture {config.model_type!r}, which is not "
            f"supported. Use one of {', '.join(get_args(Family))}."
        )
    return config
