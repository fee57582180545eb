"""Keeps the recurrence of linear attention in fp32 while everything around it computes in bf16.

transformers casts the inputs of the recurrence to fp32 on purpose, but autocast would turn its
matrix products back to bf16, and only those of the chunked form: sampling (token by token) and
scoring (in chunks) would then disagree more than bf16 makes them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from transformers.models.qwen3_5 import modeling_qwen3_5

RECURRENCES = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")


def keep_recurrences_in_fp32() -> None:
    """Make transformers run its recurrences outside autocast; calling it again changes nothing."""
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
