"""Decoding by groups of heads against transformers' own attention."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from bas_opd.model.attention import grouped_attention


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("heads", [2, 4, 8])
@pytest.mark.parametrize("is_masked", [True, False])
def test_it_equals_sdpa(tokens: int, heads: int, is_masked: bool) -> None:
    torch.manual_seed(0)
    module = nn.Module()
    module.num_key_value_groups = heads // 2  # type: ignore[assignment]
    module.is_causal = True  # type: ignore[assignment]
    query = torch.randn(3, heads, tokens, 16)
    key, value = (torch.randn(3, 2, 9, 16) for _ in range(2))
    mask = torch.ones(3, 1, tokens, 9, dtype=torch.bool)
    mask[0, ..., :4] = False
    mask[2, ..., :1] = False
    settings = {"attention_mask": mask if is_masked else None, "scaling": 0.3}
    ours, _ = grouped_attention(module, query, key, value, **settings)
    theirs, _ = sdpa_attention_forward(module, query, key, value, **settings)
    torch.testing.assert_close(ours, theirs)
