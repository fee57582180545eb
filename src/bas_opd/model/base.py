"""The small base models that come with the package, one for each version of FineSearch."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from bas_opd.errors import ModelError

LEARNT_KINDS = ("attribute", "number", "digit", "count", "existence", "neighbour", "pair")
"""The kinds of FineSearch question that they have learnt; the first has not learnt `position`."""


_FOLDERS = {"finesearch": "small_base", "finesearch2": "small_base2"}
NAMES = {"small": "finesearch", "small2": "finesearch2"}
"""What each of them is called, as in model.path=small."""


def model_folder(path: str | Path) -> str | Path:
    """Return the folder of a model that comes with the package, by its name, or the path itself."""
    return small_base(NAMES[str(path)]) if str(path) in NAMES else path


def small_base(version: str = "finesearch") -> Path:
    """Return the folder of the small model trained for a version of FineSearch, a checkpoint."""
    folder = Path(str(files("bas_opd.model"))) / _FOLDERS[version]
    if not (folder / "model.safetensors").is_file():
        raise ModelError(
            f"The small base model is missing from {folder}: the package was installed without its "
            "data. Install it again, or train one with recipes/small_base."
        )
    return folder
