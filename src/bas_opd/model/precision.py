"""What autocast alone gets wrong when parameters are fp32 and the computation is bf16."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers.models.qwen3_5 import modeling_qwen3_5

RECURRENCES = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")


def hold_frozen_linears(network: nn.Module, head: nn.Module, precision: torch.dtype) -> None:
    """Keep linear weights that LoRA leaves alone in the precision they compute in.

    Autocast remembers its casts of trained weights only; frozen ones it would cast again for every
    token drawn. The head stays in fp32, as its logits must.
    """
    for module in network.modules():
        if isinstance(module, nn.Linear) and module is not head:
            own = list(module.parameters(recurse=False))
            if not any(parameter.requires_grad for parameter in own):
                module.to(precision)


def keep_recurrences_in_fp32() -> None:
    """Make transformers run its linear-attention recurrences outside autocast, once and for all.

    It casts their inputs to fp32 on purpose, but autocast would turn the matrix products back to
    bf16, and only those of the chunked form: sampling (token by token) and scoring (in chunks)
    would then disagree more than bf16 makes them.
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
