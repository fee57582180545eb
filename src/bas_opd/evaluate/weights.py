"""Which model it is: told from every byte of its files, without loading any of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bas_opd.errors import ModelError
from bas_opd.evaluate.store import key_of
from bas_opd.runtime.integrity import sha256

_KINDS = ("*.safetensors", "*.json", "*.jinja", "*.txt")
"""Tensors, settings, chat template and tokenizer."""


def weights_fingerprint(folder: Path) -> str:
    """Return a hash of a checkpoint's tensors, its configuration and its processor.

    All of them are read, gigabytes too: two checkpoints may differ in one row of one tensor.
    """
    if not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"There are no weights (*.safetensors) in {folder}. Name a run that has finished, or "
            "the folder of a model."
        )
    files = [path for kind in _KINDS for path in folder.glob(kind)]
    with ThreadPoolExecutor() as crew:
        hashes = crew.map(sha256, files)
        return key_of(files={path.name: each for path, each in zip(files, hashes, strict=True)})
