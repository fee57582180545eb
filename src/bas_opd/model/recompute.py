"""Gradient checkpointing that keeps the cache, so that prompts stay shared.

transformers switches the cache off in a layer that it checkpoints, because the backward pass would
write into it again. Here a layer gets a cache in which its own states are a copy, both when it is
computed and when it is computed again; the states of the first time are kept.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache
from transformers.modeling_layers import GradientCheckpointingLayer

from bas_opd.model.cache import untouched


def recompute_layers(network: nn.Module) -> None:
    """Let every layer keep only its input for the backward pass, and compute the rest again."""
    for module in network.modules():
        if isinstance(module, GradientCheckpointingLayer):
            # As a method: a copy of the network must not compute with the layers of the original.
            module.forward = MethodType(_recomputed(type(module).forward), module)


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(
        layer: nn.Module,
        hidden: Tensor,
        *args: Any,
        past_key_values: DynamicCache | None = None,
        **kwargs: Any,
    ) -> Any:
        if past_key_values is not None:
            kwargs["past_key_values"] = past_key_values
        if not torch.is_grad_enabled():
            return forward(layer, hidden, *args, **kwargs)
        if past_key_values is None:
            return checkpoint(forward, layer, hidden, *args, use_reentrant=False, **kwargs)
        before = list(past_key_values.layers)
        first: list[Any] = []

        def compute(states: Tensor) -> Any:
            own = copy.copy(past_key_values)
            own.layers = [untouched(layer) for layer in before]
            found = forward(layer, states, *args, **{**kwargs, "past_key_values": own})
            if not first:
                first.extend(own.layers)
            return found

        found = checkpoint(compute, hidden, use_reentrant=False)
        past_key_values.layers = first
        return found

    return run
