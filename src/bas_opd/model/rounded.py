"""Linear weights in half precision, for many passes with the same weights.

Autocast casts fp32 weights again in every replay of a CUDA graph. Here they are cast once, into
tensors that stay in their place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class RoundedLinears:
    """Copies of the fp32 weights of a network's linear layers, in another precision."""

    def __init__(self, network: nn.Module, precision: torch.dtype) -> None:
        self._layers = [
            module
            for module in network.modules()
            if isinstance(module, nn.Linear) and module.weight.dtype is torch.float32
        ]
        self._copies = [
            nn.Parameter(torch.empty_like(layer.weight, dtype=precision), requires_grad=False)
            for layer in self._layers
        ]

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
