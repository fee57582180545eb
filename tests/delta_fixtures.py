"""The gated delta rule a token at a time, and inputs for it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bas_opd.model.delta import EPSILON

Inputs = dict[str, Any]


def delta_inputs(
    *shape: int, dtype: torch.dtype = torch.float64, device: str = "cpu", seed: int = 0
) -> Inputs:
    """Return random leaves for a batch, a length, heads, and widths of keys and values."""
    batch, length, heads, width, wide = shape
    draws = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draws, dtype=dtype, device=device).requires_grad_()

    return {
        "query": normal(batch, length, heads, width),
        "key": normal(batch, length, heads, width),
        "value": normal(batch, length, heads, wide),
        "g": normal(batch, length, heads).detach().abs().neg().requires_grad_(),
        "beta": normal(batch, length, heads).detach().sigmoid().requires_grad_(),
        "initial_state": normal(batch, heads, width, wide),
    }


def recurrence(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, initial_state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the outputs and the last state of the gated delta rule, a token at a time."""

    def unit(x: Tensor) -> Tensor:
        return x / (x.square().sum(-1, keepdim=True) + EPSILON).sqrt()

    query, key = unit(query) / math.sqrt(query.shape[-1]), unit(key)
    state, found = initial_state, []
    for token in range(query.shape[1]):
        q, k, v = (x[:, token, :, :, None] for x in (query, key, value))
        state = state * g[:, token, :, None, None].exp()
        error = v.mT - k.mT @ state
        state = state + k @ (beta[:, token, :, None, None] * error)
        found.append((q.mT @ state).squeeze(-2))
    return torch.stack(found, dim=1), state
