"""What computes on a GPU: fast paths, or the plain operations that they are compared with."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import os
from contextlib import AbstractContextManager
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from bas_opd.errors import ConfigError

Kernels = Literal["auto", "reference"]
NewKernel = Literal["delta", "filter", "loss", "race"]
"""Linear attention in chunks, its filters, the top-k of the loss, and the drawing of tokens."""
NEW_KERNELS = "BAS_OPD_NEW_KERNELS"
_chosen: Kernels = "auto"


def choose_kernels(kernels: Kernels) -> None:
    """Choose for this process: fast paths where the device has them, or none."""
    global _chosen
    _chosen = kernels


def is_fast(device: torch.device) -> bool:
    """Whether a device computes with CUDA graphs and kernels of our own."""
    return device.type == "cuda" and _chosen == "auto"


def tries_new(kernel: NewKernel) -> bool:
    """Whether kernels are used that have run in Triton's interpreter, and on no GPU yet.

    The environment names them: some, with commas between, or `all`.
    """
    named = os.environ.get(NEW_KERNELS, "")
    chosen = {each.strip() for each in named.split(",")} - {""}
    if unknown := chosen - {"all", *get_args(NewKernel)}:
        raise ConfigError(
            f"{NEW_KERNELS} names kernels that do not exist: {', '.join(sorted(unknown))}. Set it "
            f"to all or to some of {', '.join(get_args(NewKernel))}, with commas between."
        )
    return bool(chosen & {"all", kernel})


def new_kernels() -> list[NewKernel]:
    """Return those that the environment names."""
    return [kernel for kernel in get_args(NewKernel) if tries_new(kernel)]


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
