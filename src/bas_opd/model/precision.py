"""Corrections to autocast for fp32 parameters computed in bf16."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers.models.qwen3_5 import modeling_qwen3_5

RECURRENCES = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")


def hold_frozen_linears(network: nn.Module, head: nn.Module, precision: torch.dtype) -> None:
    """Store linear weights that are not trained in the precision of the computation.

    Autocast caches its casts of trained weights only; it would cast frozen ones again for every
    sampled token. The head stays in fp32, because its logits must be.
    """
    for module in network.modules():
        if isinstance(module, nn.Linear) and module is not head:
            own = list(module.parameters(recurse=False))
            if not any(parameter.requires_grad for parameter in own):
                module.to(precision)


def keep_recurrences_in_fp32() -> None:
    """Patch transformers to run its linear-attention recurrences outside autocast.

    It casts their inputs to fp32 on purpose, but autocast would run the matrix products in bf16
    again, and only those of the chunked form: sampling (token by token) and scoring (in chunks)
    would then differ by more than bf16 rounding.
    """
    for name in RECURRENCES:
        recurrence = getattr(modeling_qwen3_5, name)
        if not hasattr(recurrence, "runs_outside_autocast"):
            setattr(modeling_qwen3_5, name, _outside_autocast(recurrence))


def _outside_autocast(recurrence: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(recurrence)
    def run(query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(query.device.type, enabled=False):
            return recurrence(query, *args, **kwargs)

    run.runs_outside_autocast = True  # type: ignore[attr-defined]
    return run
