"""Attention by groups of heads and by rows against transformers' own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from stage_fixtures import make_model
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from bas_opd.model import attention, fused, vlm
from bas_opd.model.attention import Rows, attend_to_pictures, grouped_attention, rows_or_mask


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


def flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    key_starts: Tensor,
    longest: int,
    longest_key: int,
    dropout: float,
    is_causal: bool,
    _: bool,
    *,
    scale: float | None,
) -> tuple[Tensor]:
    """Attend as PyTorch's flash attention does: the last query of a row sees its last key."""
    lengths, key_lengths = starts.diff().tolist(), key_starts.diff().tolist()
    assert starts.dtype is key_starts.dtype is torch.int32
    assert longest >= max(lengths)
    assert longest_key >= max(key_lengths)
    assert dropout == 0.0
    found = []
    parts = zip(query.split(lengths), key.split(key_lengths), value.split(key_lengths), strict=True)
    for q, k, v in parts:
        mask = torch.ones(len(q), len(k), dtype=torch.bool)
        mask = mask.tril(len(k) - len(q)) if is_causal else mask
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        given = F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=True)
        found.append(given[0].transpose(0, 1))
    return (torch.cat(found),)


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Let a CPU attend as a GPU does; lists the calls, and whether they were causal."""
    calls: list[bool] = []

    def called(*given: Any, **options: Any) -> tuple[Tensor]:
        calls.append(given[8])
        return flash(*given, **options)

    for module in (attention, fused):
        monkeypatch.setattr(module, "may_be_fast", lambda: True)
    monkeypatch.setattr(attention, "_has_flash", lambda _: True)
    monkeypatch.setattr(attention, "flash_forward", lambda: called)
    return calls


def shared_heads() -> nn.Module:
    module = nn.Module()
    module.num_key_value_groups = 2  # type: ignore[assignment]
    module.is_causal = True  # type: ignore[assignment]
    return module


@pytest.mark.parametrize("before", [0, 1, 6])
@pytest.mark.parametrize("padding", [None, (0, 4, 2), (7, 0, 1)])
def test_rows_attend_as_with_a_mask(
    on_a_gpu: list[bool], before: int, padding: tuple[int, ...] | None
) -> None:
    torch.manual_seed(0)
    tokens, slots = 5, 5 + before
    shown = torch.ones(3, slots, dtype=torch.bool)
    for row, first in enumerate(padding or ()):
        shown[row, : min(first, slots - 1)] = False
    given = None if padding is None else shown
    made = rows_or_mask(3, tokens, slots, q_offset=before, attention_mask=given)
    assert isinstance(made, Rows)
    query = torch.randn(3, 4, tokens, 16)
    key, value = (torch.randn(3, 2, slots, 16) for _ in range(2))
    found, _ = grouped_attention(shared_heads(), query, key, value, made, scaling=0.3)
    assert on_a_gpu == [True]
    whole = torch.ones(tokens, slots, dtype=torch.bool).tril(before) & shown[:, None, None]
    expected, _ = sdpa_attention_forward(shared_heads(), query, key, value, whole, scaling=0.3)
    is_token = shown[:, before:]
    torch.testing.assert_close(found[is_token], expected[is_token])


def test_without_flash_attention_the_mask_is_that_of_transformers(
    on_a_gpu: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_has_flash", lambda _: False)
    torch.manual_seed(0)
    shown = torch.ones(2, 6, dtype=torch.bool)
    shown[1, :2] = False
    query = torch.randn(2, 4, 6, 16)
    key, value = (torch.randn(2, 2, 6, 16) for _ in range(2))
    rows = rows_or_mask(2, 6, 6, attention_mask=shown)
    found, _ = grouped_attention(shared_heads(), query, key, value, rows, scaling=0.3)
    monkeypatch.setattr(attention, "may_be_fast", lambda: False)
    mask = rows_or_mask(2, 6, 6, attention_mask=shown)
    assert isinstance(mask, Tensor)
    expected, _ = sdpa_attention_forward(shared_heads(), query, key, value, mask, scaling=0.3)
    assert torch.equal(found, expected)
    assert not on_a_gpu


@pytest.mark.parametrize("options", [{"local_size": 4}, {"mask_function": lambda *_: _[3] >= 0}])
def test_other_masks_than_causal_ones_stay_masks(
    on_a_gpu: list[bool], options: dict[str, Any]
) -> None:
    assert not isinstance(rows_or_mask(2, 6, 6, allow_is_causal_skip=False, **options), Rows)


@pytest.mark.parametrize("is_large", [False, True])
def test_pictures_attend_as_one_by_one(
    on_a_gpu: list[bool], is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_large:
        monkeypatch.setattr(attention, "LARGE", 4)
    torch.manual_seed(0)
    lengths = (4, 7, 2)
    places = torch.tensor((0, *lengths)).cumsum(0)
    given = [torch.randn(1, 4, sum(lengths), 8) for _ in range(3)]
    module = nn.Module()
    found = attend_to_pictures(
        module, *given, cu_seq_lens_q=places, cu_seq_lens_k=places, is_causal=False, scaling=0.3
    )
    parts = zip(*(x.split(lengths, dim=2) for x in given), strict=True)
    each = [F.scaled_dot_product_attention(*part, scale=0.3) for part in parts]
    torch.testing.assert_close(found, torch.cat(each, dim=2).transpose(1, 2))
    assert on_a_gpu == ([] if is_large else [False])


@pytest.mark.parametrize("family", ["small_qwen35", "small_qwen3vl", "small_qwen25vl"])
@pytest.mark.parametrize("share_prompts", [True, False])
def test_a_model_computes_the_same_by_rows(
    family: str,
    share_prompts: bool,
    request: pytest.FixtureRequest,
) -> None:
    """Prompts of different lengths and their responses: hidden states and gradients."""
    model = make_model(request.getfixturevalue(family))
    pictures = (Image.new("RGB", (130, 90)), Image.new("RGB", (64, 64), "white"))
    prompts = [
        model.processor.encode(picture, question)
        for picture, question in zip(pictures, ("?", "What is it? " * 5), strict=True)
    ]
    responses = [torch.arange(5, 5 + length) for length in (7, 2, 4)]
    found: list[dict[str, Tensor]] = []
    calls: list[bool] = []
    for _ in range(2):
        if found:
            calls = request.getfixturevalue("on_a_gpu")
        model.network.zero_grad()
        hidden = model.response_hidden(prompts, [0, 1, 0], responses, share_prompts=share_prompts)
        hidden.square().mean().backward()
        gradient = {n: p.grad for n, p in model.network.named_parameters() if p.grad is not None}
        found.append({"hidden": hidden, **gradient})
    assert {True, False} <= set(calls)
    assert found[0].keys() == found[1].keys()
    for name, expected in found[0].items():
        assert torch.allclose(found[1][name], expected, rtol=1e-3, atol=1e-5), name


@pytest.mark.parametrize("family", ["small_qwen35", "small_qwen3vl"])
def test_rows_of_different_lengths_may_be_computed_one_part_after_another(
    family: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(request.getfixturevalue(family), gradient_checkpointing=True)
    prompts = [model.processor.encode(Image.new("RGB", (64, 64)), text) for text in ("?", "Why?")]
    responses = [torch.arange(5, 5 + length) for length in (9, 1, 2, 30, 8, 1, 28)]
    passes: list[int] = []
    extend = model.extend

    def counted(prefix: Any, tokens: Tensor) -> Any:
        passes.append(len(tokens))
        return extend(prefix, tokens)

    monkeypatch.setattr(model, "extend", counted)
    monkeypatch.setattr(vlm, "PART_TOKENS", 5)
    found: list[list[Tensor]] = []
    for splits in (False, True):
        monkeypatch.setattr(model, "_may_split", lambda splits=splits: splits)
        model.network.zero_grad()
        hidden = model.response_hidden(prompts, [0, 1, 1, 0, 0, 1, 1], responses)
        hidden.square().mean().backward()
        found.append([hidden, *(p.grad for p in model.network.parameters() if p.grad is not None)])
    assert passes == [7, 3, 2, 2]
    for expected, got in zip(*found, strict=True):
        assert torch.allclose(got, expected, rtol=1e-3, atol=1e-5)
