"""Attention for decoding that does not copy the cache.

With a mask, transformers repeats keys and values for every query head that shares them: a copy of
the entire cache per sampled token. A single query token needs no such copy, because the heads that
share a key can take the place of query positions. All other calls go to transformers' own function.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "sdpa_grouped"


def register_grouped_attention() -> str:
    """Register the function with transformers and return its name; idempotent."""
    AttentionInterface.register(NAME, grouped_attention)
    # Without a mask function of the same name, padding would silently go unmasked.
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME


def grouped_attention(
    module: nn.Module,
    query: Tensor,  # [row, head, token, channel]
    key: Tensor,  # [row, key head, token, channel]
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend by groups of heads for one token per row, and with sdpa for more."""
    rows, heads, tokens, channels = query.shape
    if tokens > 1 or attention_mask is None or kwargs.get("dropout"):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
    groups = query.view(rows, key.shape[1], heads // key.shape[1], channels)
    mixed = F.scaled_dot_product_attention(
        groups, key, value, attn_mask=attention_mask, scale=scaling
    )
    return mixed.reshape(rows, 1, heads, channels), None
