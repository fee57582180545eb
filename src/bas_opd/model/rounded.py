"""Linear weights in half precision, for many passes with the same weights.

Autocast casts fp32 weights again in every replay of a CUDA graph. Here they are cast once, into
tensors that stay in their place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

TOGETHER = ("in_proj_qkv", "in_proj_b", "in_proj_a")
"""Layers with the same input in linear attention: the copies of their weights lie side by side."""


class RoundedLinears:
    """Copies of the fp32 weights of a network's linear layers, in another precision."""

    def __init__(self, network: nn.Module, precision: torch.dtype) -> None:
        # A wrapper has the layers of what it wraps, too.
        groups = dict.fromkeys(
            tuple(getattr(module, name) for name in TOGETHER)
            for module in network.modules()
            if all(_may_round(getattr(module, name, None)) for name in TOGETHER)
        )
        grouped = {layer for group in groups for layer in group}
        groups |= {
            (each,): None for each in network.modules() if _may_round(each) and each not in grouped
        }
        self._layers: list[nn.Linear] = []
        self._copies: list[nn.Parameter] = []
        for group in groups:
            sizes = [layer.out_features for layer in group]
            shape = (sum(sizes), group[0].in_features)
            rows = torch.empty(shape, dtype=precision, device=group[0].weight.device)
            self._layers += group
            self._copies += [nn.Parameter(x, requires_grad=False) for x in rows.split(sizes)]

    @property
    def size(self) -> int:
        """Bytes of the copies."""
        return sum(copy.nbytes for copy in self._copies)

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights as they are now."""
        for layer, copy in zip(self._layers, self._copies, strict=True):
            copy.copy_(layer.weight)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let the layers compute with the copies."""
        own = [layer.weight for layer in self._layers]
        try:
            for layer, copy in zip(self._layers, self._copies, strict=True):
                layer.weight = copy
            yield
        finally:
            for layer, weight in zip(self._layers, own, strict=True):
                layer.weight = weight


def side_by_side(layers: Sequence[nn.Module]) -> Tensor | None:
    """Return the weights of linear layers as one matrix, if they lie in memory as one."""
    weights: list[Tensor] = []
    for layer in layers:
        if type(layer) is not nn.Linear or layer.bias is not None:
            return None
        weights.append(layer.weight)
    first, after = weights[0], weights[0].data_ptr()
    for weight in weights:
        if (
            weight.data_ptr() != after
            or not weight.is_contiguous()
            or weight.dtype is not first.dtype
            or weight.shape[1] != first.shape[1]
            or weight.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
        ):
            return None
        after += weight.nbytes
    rows = sum(map(len, weights))
    return first.detach().as_strided((rows, first.shape[1]), (first.shape[1], 1))


def _may_round(module: nn.Module | None) -> bool:
    return isinstance(module, nn.Linear) and module.weight.dtype is torch.float32
