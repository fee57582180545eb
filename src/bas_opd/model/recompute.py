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
    for stack in network.modules():
        if isinstance(stack, nn.ModuleList):
            for place, layer in enumerate(stack):
                if isinstance(layer, GradientCheckpointingLayer):
                    # As a method: a copy of the network must not compute with the original's.
                    layer.forward = MethodType(_recomputed(type(layer).forward, place), layer)


def _recomputed(forward: Callable[..., Any], place: int) -> Callable[..., Any]:
    def run(
        layer: nn.Module,
        hidden: Tensor,
        *args: Any,
        past_key_values: DynamicCache | None = None,
        **kwargs: Any,
    ) -> Any:
        if not torch.is_grad_enabled():
            return forward(layer, hidden, *args, past_key_values=past_key_values, **kwargs)
        if past_key_values is None:
            return checkpoint(forward, layer, hidden, *args, use_reentrant=False, **kwargs)
        # The graph keeps `compute`, so it must not reach the cache that the graph's results go
        # into: a pass without a backward pass would never be freed.
        before = copy.copy(past_key_values)
        before.layers = list(past_key_values.layers)
        first: list[Any] = []
        is_first = True

        def compute(states: Tensor) -> Any:
            nonlocal is_first
            own = copy.copy(before)
            own.layers = list(before.layers)
            own.layers[place] = untouched(before.layers[place])
            found = forward(layer, states, *args, past_key_values=own, **kwargs)
            if is_first:
                first.append(own.layers[place])
                is_first = False
            return found

        found = checkpoint(compute, hidden, use_reentrant=False)
        past_key_values.layers[place] = first.pop()
        return found

    return run
