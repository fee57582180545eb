"""Whether torchvision can be imported: transformers' own processors need it."""

from __future__ import annotations

import pytest


def _imports() -> bool:
    try:
        import torchvision  # noqa: F401  # pyright: ignore[reportMissingImports]
    except (ImportError, RuntimeError):  # Beside a CPU build of torch, its import fails half-way.
        return False
    return True


needs_torchvision = pytest.mark.skipif(
    not _imports(), reason="AutoProcessor needs torchvision; `make trainers` installs it"
)
