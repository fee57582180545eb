"""The small base model that comes with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from bas_opd.errors import ModelError

LEARNT_KINDS = ("attribute", "number", "digit", "count", "existence", "neighbour", "pair")
"""The kinds of FineSearch question that it has learnt; it has not learnt `position`."""


def small_base() -> Path:
    """Return the folder of the trained small model, an ordinary checkpoint."""
    folder = Path(str(files("bas_opd.model"))) / "small_base"
    if not (folder / "model.safetensors").is_file():
        raise ModelError(
            f"The small base model is missing from {folder}: the package was installed without its "
            "data. Install it again, or train one with recipes/small_base."
        )
    return folder
