"""A key-value cache that can be shared: its rows can be repeated, with gradients enabled.

transformers' cache for linear attention overwrites states in place, which the backward pass
forbids, and cannot repeat its rows. Here states are assigned, never overwritten, so the cache of a
prompt is part of the graph and serves all rollouts of that prompt.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache, PretrainedConfig
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

from bas_opd.errors import ModelError


class AssignedLinearLayer(LinearAttentionLayer):
    """Convolution and recurrent states of one linear-attention layer, assigned and not copied."""

    def update_conv_state(
        self,
        conv_states: Tensor,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Return the inputs of the convolution, and keep its last window."""
        window = conv_kernel_size or conv_states.shape[-1]
        previous = self.conv_states[state_idx]
        seen = conv_states if previous is None else torch.cat([previous, conv_states], dim=-1)
        seen = F.pad(seen, (max(0, window - seen.shape[-1]), 0))
        last = seen[..., -window:]
        # A view would keep the whole prompt.
        self.conv_states[state_idx] = last if torch.is_grad_enabled() else last.clone()
        self.has_previous_state[state_idx] = True
        self.is_conv_states_initialized[state_idx] = True
        return seen

    def update_recurrent_state(
        self, recurrent_states: Tensor, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        """Keep the state after the last token."""
        self.recurrent_states[state_idx] = recurrent_states
        self.is_recurrent_states_initialized[state_idx] = True
        return recurrent_states


class AttentionLayer(DynamicLayer):
    """Keys and values of one attention layer, stored in the precision of the computation.

    Under autocast the rotary embedding promotes keys to fp32; attention casts them back at every
    use, so storing them in fp32 takes twice the memory and changes no number.
    """

    def __init__(self, precision: torch.dtype) -> None:
        super().__init__()
        self.precision = precision

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append new keys and values, and return all of them."""
        return super().update(
            key_states.to(self.precision), value_states.to(self.precision), *args, **kwargs
        )


class FixedLayer(AttentionLayer):
    """Keys and values of one attention layer in tensors of fixed size, written at one slot."""

    keys: Tensor
    values: Tensor

    def __init__(self, like: Any, rows: int, capacity: int, slot: Tensor) -> None:
        super().__init__(like.precision)
        self.slot = slot
        self.keys, self.values = (
            states.new_zeros(rows, states.shape[1], capacity, states.shape[3])
            for states in (like.keys, like.values)
        )
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the states of one token at the slot, and return all; a mask hides what is empty."""
        self.keys.index_copy_(2, self.slot, key_states.to(self.precision))
        self.values.index_copy_(2, self.slot, value_states.to(self.precision))
        return self.keys, self.values


class FixedLinearLayer(AssignedLinearLayer):
    """Convolution and recurrent states of one linear-attention layer, overwritten in their place.

    A step of one token updates the convolution's state in place by itself.
    """

    def __init__(self, like: AssignedLinearLayer, rows: int) -> None:
        super().__init__()
        for name, value in vars(like).items():
            setattr(self, name, dict(value) if isinstance(value, dict) else value)
        for states in (self.conv_states, self.recurrent_states):
            for i, given in states.items():
                states[i] = None if given is None else given.new_zeros(rows, *given.shape[1:])

    def update_recurrent_state(
        self, recurrent_states: Tensor, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        """Overwrite the state by that after the last token."""
        kept = self.recurrent_states[state_idx]
        assert kept is not None
        # On a GPU a step of one token has done so by itself.
        return kept if recurrent_states is kept else kept.copy_(recurrent_states)


def cache_bytes(cache: DynamicCache, capacity: int) -> int:
    """Return the bytes of a cache of fixed size."""
    layers: list[Any] = cache.layers
    total = 0
    for layer in layers:
        if isinstance(layer, AssignedLinearLayer):
            total += sum(states.nbytes for states in _linear_states(layer))
        else:
            for states in (layer.keys, layer.values):
                rows, heads, _, width = states.shape
                total += states.element_size() * rows * heads * width * capacity
    return total


def fixed_cache(cache: DynamicCache, rows: int, capacity: int, slot: Tensor) -> DynamicCache:
    """Return an empty cache of fixed size for a model that has another, written at a slot."""
    layers: list[Any] = [
        FixedLinearLayer(layer, rows)
        if isinstance(layer, AssignedLinearLayer)
        else FixedLayer(layer, rows, capacity, slot)
        for layer in cache.layers
    ]
    fixed = copy.copy(cache)
    fixed.layers = layers
    return fixed


def fill(fixed: DynamicCache, cache: DynamicCache, repeats: int = 1) -> None:
    """Copy each row of a cache `repeats` times to one of fixed size; its further rows become 0."""
    pairs: Any = zip(fixed.layers, cache.layers, strict=True)
    for layer, given in pairs:
        if isinstance(layer, FixedLinearLayer):
            for kept, states in zip(_linear_states(layer), _linear_states(given), strict=True):
                count = repeats * len(states)
                kept[:count].unflatten(0, (-1, repeats)).copy_(states[:, None])
                kept[count:] = 0
            continue
        length = given.get_seq_length()
        for fixed_states, states in ((layer.keys, given.keys), (layer.values, given.values)):
            count = repeats * len(states)
            used = fixed_states[:count]
            used[:, :, :length].unflatten(0, (-1, repeats)).copy_(states[:, None])
            # What is hidden has no weight, but no weight times a NaN is still a NaN.
            used[:, :, length:] = 0
            fixed_states[count:] = 0


def released(fixed: DynamicCache, rows: Tensor, length: int) -> DynamicCache:
    """Return a cache that can grow, with some rows of one of fixed size up to a length."""
    layers: list[Any] = []
    for layer in fixed.layers:
        if isinstance(layer, FixedLinearLayer):
            taken: Any = AssignedLinearLayer()
            vars(taken).update(vars(_take(layer, rows)))
        else:
            given: Any = layer
            taken = AttentionLayer(given.precision)
            taken.keys, taken.values = (
                states[:, :, :length].index_select(0, rows) for states in (given.keys, given.values)
            )
            taken.dtype, taken.device = taken.keys.dtype, taken.keys.device
            taken.is_initialized = True
        layers.append(taken)
    growing = copy.copy(fixed)
    growing.layers = layers
    return growing


def _linear_states(layer: AssignedLinearLayer) -> list[Tensor]:
    """Return the states of a linear-attention layer that it has."""
    found = (*layer.conv_states.values(), *layer.recurrent_states.values())
    return [states for states in found if states is not None]


def empty_cache(config: PretrainedConfig, precision: torch.dtype) -> DynamicCache:
    """Return a cache for one prefill of a model with this configuration."""
    cache = DynamicCache(config=config)
    cache.layers = [_shareable(layer, precision) for layer in cache.layers]
    return cache


def take_rows(cache: DynamicCache, rows: Tensor) -> DynamicCache:
    """Return a cache of the given rows, which may repeat; the original is not changed."""
    taken = copy.copy(cache)
    taken.layers = [_take(layer, rows) for layer in cache.layers]
    return taken


def join_rows(caches: Sequence[DynamicCache]) -> DynamicCache:
    """Return a cache with the rows of several.

    Shorter ones have empty slots at their beginning, which a mask must hide.
    """
    joined = copy.copy(caches[0])
    joined.layers = [_join(layers) for layers in zip(*(c.layers for c in caches), strict=True)]
    return joined


def untouched(layer: Any) -> Any:
    """Return a layer of a cache with the same states, whose changes do not reach the original."""
    taken = copy.copy(layer)
    for name, value in vars(layer).items():
        if isinstance(value, dict):
            setattr(taken, name, dict(value))
    return taken


def _shareable(layer: Any, precision: torch.dtype) -> Any:
    if isinstance(layer, LinearAttentionLayer):
        return AssignedLinearLayer()
    if type(layer) is DynamicLayer:
        return AttentionLayer(precision)
    raise ModelError(
        f"This model has a cache of type {type(layer).__name__}, which cannot be shared between "
        "rollouts. Use a Qwen3.5, Qwen3-VL or Qwen2.5-VL model with full attention."
    )


def _take(layer: Any, rows: Tensor) -> Any:
    taken = copy.copy(layer)
    if isinstance(layer, AssignedLinearLayer):
        taken.conv_states = _rows_of(layer.conv_states, rows)
        taken.recurrent_states = _rows_of(layer.recurrent_states, rows)
        taken.has_previous_state = dict(layer.has_previous_state)
    else:
        taken.keys = layer.keys.index_select(0, rows)
        taken.values = layer.values.index_select(0, rows)
    return taken


def _join(layers: Sequence[Any]) -> Any:
    joined = copy.copy(layers[0])
    if isinstance(joined, AssignedLinearLayer):
        joined.conv_states = _all_rows([layer.conv_states for layer in layers])
        joined.recurrent_states = _all_rows([layer.recurrent_states for layer in layers])
        joined.has_previous_state = dict(joined.has_previous_state)
        return joined
    longest = max(layer.get_seq_length() for layer in layers)
    for name in ("keys", "values"):
        states = [getattr(layer, name) for layer in layers]
        padded = [F.pad(each, (0, 0, longest - each.shape[2], 0)) for each in states]
        setattr(joined, name, torch.cat(padded))
    return joined


def _all_rows(states: Sequence[dict[int, Tensor | None]]) -> dict[int, Tensor | None]:
    every = {i: [each[i] for each in states] for i in states[0]}
    return {i: None if some[0] is None else torch.cat(some) for i, some in every.items()}  # type: ignore[arg-type]


def _rows_of(states: dict[int, Tensor | None], rows: Tensor) -> dict[int, Tensor | None]:
    return {i: None if s is None else s.index_select(0, rows) for i, s in states.items()}
