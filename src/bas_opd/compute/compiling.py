"""What computes on a GPU: fast paths, or the plain operations that they are compared with."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch import Tensor

Kernels = Literal["auto", "reference"]
_chosen: Kernels = "auto"


def choose_kernels(kernels: Kernels) -> None:
    """Choose for this process: fast paths where the device has them, or none."""
    global _chosen
    _chosen = kernels


def is_fast(device: torch.device) -> bool:
    """Whether a device computes with CUDA graphs and kernels of our own."""
    return device.type == "cuda" and _chosen == "auto"


def may_be_fast() -> bool:
    """Whether this process has a GPU and may use fast paths there."""
    return torch.cuda.is_available() and is_fast(torch.device("cuda"))


def computed_in(x: Tensor) -> torch.dtype:
    """Return what a product of a tensor is computed in: autocast's precision where it is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def has_kernels(device: torch.device) -> bool:
    """Whether a device computes with our Triton kernels."""
    return is_fast(device) and has_triton()


def power_of_two(size: int) -> int:
    """Return the smallest power of two that is no less; Triton's tiles have such sizes."""
    return 1 << (size - 1).bit_length()


def launching_on(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which Triton launches where a tensor is; it uses the current device."""
    return torch.cuda.device(tensor.device if tensor.device.type == "cuda" else -1)


@functools.cache
def has_triton() -> bool:
    """Return whether a small kernel runs; said once if Triton is there and it does not.

    Triton comes with the CUDA build of PyTorch, but needs a C compiler too.
    """
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        kernels: Any = importlib.import_module("bas_opd.compute.triton_trial")
        found = torch.zeros(1, device="cuda")
        kernels.trial[(1,)](found)
        return bool(found.item() == 1)
    except Exception as error:  # Whatever fails in a compiler, there is another way.
        logging.getLogger(__name__).warning(
            "Triton kernels do not run on this machine, so slower PyTorch operations are used "
            "(%s: %s). They need a C compiler, such as gcc.",
            type(error).__name__,
            error,
        )
        return False
