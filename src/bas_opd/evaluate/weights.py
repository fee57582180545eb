"""Which model it is: told from a sample of every weight, without loading any of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from bas_opd.errors import ModelError

_SAMPLE = 4096


def weights_fingerprint(folder: Path) -> str:
    """Return a hash of a checkpoint's tensors, its configuration and its processor.

    Of each tensor its name, type, shape and some of its bytes count: two trained models differ in
    all of them, and gigabytes need not be read.
    """
    digest = hashlib.sha256()
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise ModelError(
            f"There are no weights (*.safetensors) in {folder}. Name a run that has finished, or "
            "the folder of a model."
        )
    for path in sorted([*folder.glob("*.json"), *folder.glob("*.jinja")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    for path in weights:
        digest.update(path.name.encode() + b"\0")
        _add_tensors(digest, path)
    return digest.hexdigest()


def _add_tensors(digest: hashlib._Hash, path: Path) -> None:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if not 0 < size <= path.stat().st_size:
            raise ModelError(f"{path} is no safetensors file, or it was cut short.")
        header = file.read(size)
        digest.update(header)
        tensors = {name: entry for name, entry in json.loads(header).items() if "dtype" in entry}
        for name in sorted(tensors):
            start, end = tensors[name]["data_offsets"]
            file.seek(8 + size + start + max(0, (end - start - _SAMPLE) // 2))
            digest.update(file.read(min(_SAMPLE, end - start)))
