"""Attention by rows, of one token and to pictures at the shape of Qwen3.5-4B, against sdpa."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bas_opd.model import attention as module
from bas_opd.model.attention import Rows, attend_one, attend_to_pictures, rows_or_mask

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SHARED: Any = SimpleNamespace(num_key_value_groups=4, is_causal=True, training=True)
OWN: Any = SimpleNamespace(num_key_value_groups=1, is_causal=False, training=True)


attention: Any = module.grouped_attention


def distance(found: Tensor, expected: Tensor) -> float:
    exact = expected.detach().double()
    return float((found.detach().double() - exact).norm() / exact.norm())


@pytest.mark.parametrize(("tokens", "before"), [(1053, 0), (70, 1053), (2, 40), (5, 3)])
@pytest.mark.parametrize("padding", [None, (0, 7, 2)])
@pytest.mark.parametrize("channels", [64, 256])
def test_rows_attend_as_with_a_mask(
    tokens: int, before: int, padding: tuple[int, ...] | None, channels: int
) -> None:
    """Values and gradients, those of padded keys too, which are 0."""
    torch.manual_seed(0)
    slots = before + tokens
    shown = torch.ones(3, slots, dtype=torch.long, device="cuda")
    for row, first in enumerate(padding or ()):
        shown[row, : min(first, slots - 1)] = 0
    made = rows_or_mask(
        3,
        tokens,
        slots,
        q_offset=before,
        attention_mask=None if padding is None else shown.bool(),
        device="cuda",
    )
    assert isinstance(made, Rows)
    given = [
        torch.randn(3, heads, size, channels, device="cuda").bfloat16()
        for heads, size in ((16, tokens), (4, slots), (4, slots))
    ]
    reaching = torch.randn(3, tokens, 16, channels, device="cuda").bfloat16()
    reaching *= shown[:, before:, None, None]
    found = []
    for mask in (made.mask, made):
        exact = mask is not made
        leaves = [(x.float() if exact else x).detach().clone().requires_grad_() for x in given]
        # Without a mask, sdpa takes the last query for the last but `before`.
        if exact and mask is None and before:
            mask = torch.ones(tokens, slots, device="cuda").tril(before).bool()[None, None]
        out, _ = attention(SHARED, *leaves, mask, scaling=channels**-0.5)
        out.backward(reaching.to(out.dtype))
        found.append([out * shown[:, before:, None, None], *(leaf.grad for leaf in leaves)])
    for expected, got in zip(*found, strict=True):
        assert torch.isfinite(got).all()
        assert distance(got, expected) < 1e-2
    for gradient in found[1][2:]:
        assert float((gradient * (1 - shown)[:, None, :, None]).abs().max()) == 0.0


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 4, 32, 224])
def test_one_token_attends_as_with_sdpa(rows: int) -> None:
    torch.manual_seed(0)
    query = torch.randn(rows, 4, 4, 256, device="cuda").bfloat16()
    key, value = (torch.randn(rows, 4, 1280, 256, device="cuda").bfloat16() for _ in range(2))
    seen = torch.zeros(rows, 1, 1, 1280, dtype=torch.bool, device="cuda")
    seen[..., 5:1200] = True
    seen[0, ..., :300] = False
    exact = (x.float() for x in (query, key, value))
    expected = F.scaled_dot_product_attention(*exact, attn_mask=seen)
    assert distance(attend_one(query, key, value, seen, None), expected) < 5e-3


@pytest.mark.parametrize("lengths", [(64, 256, 100), (4096, 1024, 2048)])
def test_pictures_attend_as_one_by_one(lengths: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    places = torch.tensor((0, *lengths)).cumsum(0)
    given = [torch.randn(1, 16, sum(lengths), 64, device="cuda").bfloat16() for _ in range(3)]
    leaves = [x.detach().clone().requires_grad_() for x in given]
    found = attend_to_pictures(OWN, *leaves, cu_seq_lens_q=places, cu_seq_lens_k=places)
    reaching = torch.randn_like(found)
    found.backward(reaching)
    exact = [x.float().requires_grad_() for x in given]
    parts = zip(*(x.split(lengths, dim=2) for x in exact), strict=True)
    expected = torch.cat([F.scaled_dot_product_attention(*part) for part in parts], dim=2)
    expected.transpose(1, 2).backward(reaching.float())
    assert distance(found, expected.transpose(1, 2)) < 1e-2
    for leaf, other in zip(leaves, exact, strict=True):
        assert leaf.grad is not None
        assert other.grad is not None
        assert distance(leaf.grad, other.grad) < 1e-2
