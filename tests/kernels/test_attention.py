"""Attention of one token in Triton's interpreter, against PyTorch in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from bas_opd.model import attention
from bas_opd.model.attention import attend_one


@pytest.mark.parametrize("group", [1, 4, 6])
@pytest.mark.parametrize("slots", [1, 31, 80, 130])
@pytest.mark.parametrize(("channels", "parts"), [(16, 1), (16, 16), (64, 2), (64, 4)])
def test_one_token_attends_as_with_pytorch(
    group: int, slots: int, channels: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "PARTS", parts)
    torch.manual_seed(0)
    query = torch.randn(3, 2, group, channels).half()
    key, value = (torch.randn(3, 2, slots + 3, channels).half() for _ in range(2))
    # Not contiguous, as a part of a longer cache.
    key, value = key[:, :, 2 : 2 + slots], value[:, :, 3:]
    seen = torch.ones(3, 1, 1, slots, dtype=torch.bool)
    seen[0, ..., : slots // 3] = False  # padding
    seen[1, ..., slots // 2 + 1 :] = False  # not reached yet
    found = attend_one(query, key, value, seen, 0.3)
    exact = (x.double() for x in (query, key, value))
    expected = F.scaled_dot_product_attention(*exact, attn_mask=seen, scale=0.3)
    assert found.dtype is torch.float16
    assert torch.allclose(found.double(), expected, atol=3e-3)


@pytest.mark.parametrize(
    ("programs", "parts"), [(1, 16), (16, 16), (17, 8), (64, 4), (128, 2), (129, 1), (896, 1)]
)
def test_few_rows_are_read_in_more_parts(programs: int, parts: int) -> None:
    assert attention._parts(programs) == parts


def test_scores_are_scaled_by_the_width_unless_said_otherwise() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 2, 16, 64).half() for _ in range(3))
    seen = torch.ones(2, 1, 1, 16, dtype=torch.bool)
    found = attend_one(query, key, value, seen, None)
    assert torch.equal(found, attend_one(query, key, value, seen, 1 / 8))


def test_what_is_not_seen_may_be_anything() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 1, 40, 16).half() for _ in range(3))
    seen = torch.ones(1, 1, 1, 40, dtype=torch.bool)
    seen[..., 10:] = False
    seen[..., :2] = False
    before = attend_one(query[:, :, :4], key, value, seen, None)
    key[:, :, 10:], key[:, :, :2] = 100.0, -100.0
    value[:, :, 10:], value[:, :, :2] = 5.0, 5.0
    assert torch.equal(attend_one(query[:, :, :4], key, value, seen, None), before)
