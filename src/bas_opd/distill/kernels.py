"""Two passes over a chunk of logits, each of which reads them once.

On a GPU with Triton they are kernels; elsewhere, plain PyTorch that computes the same.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from bas_opd.compute.compiling import has_triton, launching_on

BLOCK = 64
"""Neighbouring logits that are summarised together."""
TILE = 32
"""Blocks that one program reads."""
COLUMNS = 4096
"""Logits that one program turns into gradients."""


def block_summaries(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest logit of each block, and the log-sum-exp of each: `[token, block]`."""
    kernels = _kernels() if logits.is_cuda else None
    if kernels is None:
        return _plain_summaries(logits)
    tokens, vocabulary = logits.shape
    blocks = -(-vocabulary // BLOCK)
    largest, summed = (logits.new_empty(tokens, blocks) for _ in range(2))
    with launching_on(logits):
        kernels.summarise[(tokens, -(-blocks // TILE))](
            logits, largest, summed, logits.stride(0), vocabulary, blocks, tile=TILE, width=BLOCK
        )
    return largest, summed


def scaled_softmax(logits: Tensor, normaliser: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return scale * exp(logits - normaliser), both `[token]`, in another dtype."""
    kernels = _kernels() if logits.is_cuda else None
    if kernels is None:
        return torch.exp(logits - normaliser[:, None]).mul_(scale[:, None]).to(dtype)
    tokens, vocabulary = logits.shape
    out = torch.empty(logits.shape, dtype=dtype, device=logits.device)
    with launching_on(logits):
        kernels.scale_softmax[(tokens, -(-vocabulary // COLUMNS))](
            logits, normaliser, scale, out, logits.stride(0), vocabulary, width=COLUMNS
        )
    return out


def _plain_summaries(logits: Tensor) -> tuple[Tensor, Tensor]:
    whole = logits.shape[-1] // BLOCK * BLOCK
    parts = [logits[:, :whole].unflatten(-1, (-1, BLOCK))]
    if whole < logits.shape[-1]:
        parts.append(logits[:, None, whole:])
    largest, summed = zip(*((part.amax(-1), part.logsumexp(-1)) for part in parts), strict=True)
    return torch.cat(largest, dim=-1), torch.cat(summed, dim=-1)


@functools.cache
def _kernels() -> Any:
    """Return the kernels; None without Triton."""
    if not has_triton():
        return None
    from bas_opd.distill import triton_kernels

    return triton_kernels
