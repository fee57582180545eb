"""Passes over a chunk of logits: two that read all of it once, and two over a few blocks of it.

On a GPU with Triton they are kernels. Elsewhere plain PyTorch computes the same: the first two
here, the others in `explicit`.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from torch import Tensor

from bas_opd.compute.compiling import has_kernels, launching_on, power_of_two

BLOCK = 64
"""Neighbouring logits that are summarised together."""
TILE = 32
"""Blocks that one program reads."""
COLUMNS = 4096
"""Logits that one program turns into gradients."""
LARGEST_K = 128
"""A larger one would not fit into the registers of a program."""


def block_summaries(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest logit of each block, and the log-sum-exp of each: `[token, block]`."""
    if not has_kernels(logits.device):
        return _plain_summaries(logits)
    kernels = _kernels()
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
    if not has_kernels(logits.device):
        return torch.exp(logits - normaliser[:, None]).mul_(scale[:, None]).to(dtype)
    tokens, vocabulary = logits.shape
    out = torch.empty(logits.shape, dtype=dtype, device=logits.device)
    with launching_on(logits):
        _kernels().scale_softmax[(tokens, -(-vocabulary // COLUMNS))](
            logits, normaliser, scale, out, logits.stride(0), vocabulary, width=COLUMNS
        )
    return out


def can_fuse(logits: Tensor, k: int) -> bool:
    """Whether kernels find the top-k, compare it and sum up the rest."""
    fits = k <= LARGEST_K and k * BLOCK < logits.shape[-1]
    return fits and logits.dtype is torch.float32 and has_kernels(logits.device)


def fused_topk(logits: Tensor, largest: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return values and ids of the top-k in ascending order of ids; of equal values, the first."""
    kernels = _kernels()
    tokens, vocabulary = logits.shape
    blocks = torch.empty(tokens, k, dtype=torch.int32, device=logits.device)
    top = logits.new_empty(tokens, k)
    index = torch.empty(tokens, k, dtype=torch.int64, device=logits.device)
    with launching_on(logits):
        kernels.choose_blocks[(tokens,)](
            *(largest, blocks, largest.shape[-1], k), many=power_of_two(largest.shape[-1])
        )
        kernels.choose_tokens[(tokens,)](
            *(logits, blocks, top, index, logits.stride(0), vocabulary, k),
            slots=power_of_two(k),
            width=BLOCK,
            num_warps=8,
        )
    return top, index


def fused_rest(logits: Tensor, summed: Tensor, index: Tensor) -> Tensor:
    """Return the log-sum-exp of a token's logits, which are -inf at ids that ascend.

    The log-sum-exps of blocks are those before.
    """
    tokens, vocabulary = logits.shape
    untouched = summed.scatter(-1, index // BLOCK, float("-inf"))
    rest = logits.new_empty(tokens)
    with launching_on(logits):
        _kernels().sum_rest[(tokens,)](
            *(logits, untouched, index, rest),
            *(logits.stride(0), vocabulary, summed.shape[-1], index.shape[-1]),
            many=power_of_two(summed.shape[-1]),
            slots=power_of_two(index.shape[-1]),
            width=BLOCK,
            num_warps=8,
        )
    return rest


def _plain_summaries(logits: Tensor) -> tuple[Tensor, Tensor]:
    whole = logits.shape[-1] // BLOCK * BLOCK
    parts = [logits[:, :whole].unflatten(-1, (-1, BLOCK))]
    if whole < logits.shape[-1]:
        parts.append(logits[:, None, whole:])
    largest, summed = zip(*((part.amax(-1), part.logsumexp(-1)) for part in parts), strict=True)
    return torch.cat(largest, dim=-1), torch.cat(summed, dim=-1)


@functools.cache
def _kernels() -> Any:
    return importlib.import_module("bas_opd.distill.triton_kernels")
