"""Attention by groups of heads and by rows against transformers' own."""

from __future__ import annotations

import weakref
from pathlib import Path
from types import SimpleNamespace
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
    monkeypatch.setattr(attention, "_has_flash", lambda *_: True)
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
    monkeypatch.setattr(attention, "_has_flash", lambda *_: False)
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


def sees_all(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return key >= 0


@pytest.mark.parametrize(
    "options",
    [
        {"local_size": 4},
        {"mask_function": sees_all},
        {"q_length": 1, "q_offset": 5},
        {"q_length": 4},  # its last query would be taken for the last of six
        {"q_length": 4, "q_offset": torch.tensor(2)},
        {"kv_offset": 2, "kv_length": 4, "q_length": 4},
    ],
)
def test_other_masks_than_causal_ones_of_rows_stay_masks(
    on_a_gpu: list[bool], options: dict[str, Any]
) -> None:
    sizes = {"q_length": 6, "kv_length": 6, "allow_is_causal_skip": False}
    assert isinstance(rows_or_mask(2, **sizes), Rows)
    assert not isinstance(rows_or_mask(2, **{**sizes, **options}), Rows)


@pytest.mark.parametrize(
    ("capability", "channels", "dtype", "learns", "expected"),
    [
        ((9, 0), 256, torch.bfloat16, True, True),
        ((8, 0), 256, torch.float16, True, True),
        ((10, 0), 256, torch.bfloat16, True, True),
        ((8, 9), 256, torch.bfloat16, True, False),
        ((8, 9), 256, torch.bfloat16, False, True),
        ((8, 9), 192, torch.bfloat16, True, True),
        ((12, 0), 256, torch.bfloat16, True, False),
        ((7, 5), 64, torch.float16, False, False),
        ((9, 0), 64, torch.float32, False, False),
        ((9, 0), 264, torch.bfloat16, False, False),
        ((9, 0), 60, torch.bfloat16, False, False),
    ],
)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_flash_attention_is_asked_for_what_it_can_do(
    capability: tuple[int, int],
    channels: int,
    dtype: torch.dtype,
    learns: bool,
    expected: bool,
    which: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever of queries, keys and values is trained."""
    monkeypatch.setattr(attention, "is_fast", lambda _: True)
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    given = [torch.zeros(1, 1, 2, channels, dtype=dtype) for _ in range(3)]
    given[which].requires_grad_(learns)
    assert attention._has_flash(*given) == expected
    monkeypatch.setattr(attention, "is_fast", lambda _: False)
    assert not attention._has_flash(*given)


def test_rows_with_dropout_attend_with_a_mask(on_a_gpu: list[bool]) -> None:
    query = torch.randn(2, 4, 6, 16)
    key, value = (torch.randn(2, 2, 6, 16) for _ in range(2))
    rows = rows_or_mask(2, 6, 6)
    grouped_attention(shared_heads(), query, key, value, rows, scaling=0.3, dropout=0.5)
    assert not on_a_gpu


def test_packed_rows_of_text_are_no_pictures(on_a_gpu: list[bool]) -> None:
    torch.manual_seed(0)
    query = torch.randn(1, 4, 6, 16)
    key, value = (torch.randn(1, 2, 6, 16) for _ in range(2))
    places, given = torch.tensor([0, 2, 6]), (query, key, value, None)
    found, _ = grouped_attention(shared_heads(), *given, scaling=0.3, cu_seq_lens_q=places)
    expected, _ = sdpa_attention_forward(shared_heads(), *given, scaling=0.3)
    assert torch.equal(found, expected)
    assert not on_a_gpu


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"dtype": torch.float32},
        {"channels": 24},
        {"slots": 2**15 + 1},
        {"mask": torch.float16},
        {"capability": (7, 5)},
        {"kernels": False},
        {"learns": True},
    ],
)
def test_the_kernel_of_one_token_is_asked_for_what_it_can_do(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    case: dict[str, Any] = {
        "dtype": torch.float16,
        "channels": 32,
        "slots": 9,
        "mask": torch.bool,
        "capability": (8, 0),
        "kernels": True,
        "learns": False,
        **change,
    }
    called: list[Tensor] = []
    monkeypatch.setattr(attention, "has_kernels", lambda _: case["kernels"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: case["capability"])
    monkeypatch.setattr(attention, "attend_one", lambda query, *_: called.append(query) or query)
    query = torch.zeros(1, 4, 1, case["channels"], dtype=case["dtype"])
    key = torch.zeros(1, 2, case["slots"], case["channels"], dtype=case["dtype"])
    seen = torch.ones(1, 1, 1, case["slots"], dtype=case["mask"])
    with torch.set_grad_enabled(case["learns"]):
        grouped_attention(shared_heads(), query, key, key, seen, scaling=0.3)
    assert len(called) == (not change)


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
        if found:  # Only now: a fixture among the arguments would change the first pass, too.
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
    found: list[list[Tensor]] = []
    for tokens in (None, 5):
        monkeypatch.setattr(type(model), "part_tokens", tokens)
        model.network.zero_grad()
        hidden = model.response_hidden(prompts, [0, 1, 1, 0, 0, 1, 1], responses)
        hidden.square().mean().backward()
        found.append([hidden, *(p.grad for p in model.network.parameters() if p.grad is not None)])
    assert passes == [7, 3, 2, 2]
    for expected, got in zip(*found, strict=True):
        assert torch.allclose(got, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("is_by_layer", [None, False, True])
def test_layers_gathered_one_by_one_have_one_pass_over_all_rows(
    is_by_layer: bool | None, small_qwen35: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(small_qwen35)
    monkeypatch.setattr(vlm, "is_fast", lambda _: True)
    if is_by_layer is not None:
        monkeypatch.setattr(model, "shards", SimpleNamespace(is_by_layer=is_by_layer))
    assert model.part_tokens == (None if is_by_layer else vlm.PART_TOKENS)


def test_the_cache_of_prompts_is_gone_while_responses_are_computed(
    small_qwen3vl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(small_qwen3vl)
    prompt = model.processor.encode(Image.new("RGB", (64, 64)), "?")
    kept: list[weakref.ref[Tensor]] = []
    alive: list[bool] = []
    prefill, extend = model.prefill, model.extend

    def prefilled(prompts: Any) -> Any:
        prefix = prefill(prompts)
        layer: Any = prefix.cache.layers[0]
        kept.append(weakref.ref(layer.keys))
        return prefix

    def extended(*given: Any) -> Any:
        alive.append(kept[0]() is not None)
        return extend(*given)

    monkeypatch.setattr(model, "prefill", prefilled)
    monkeypatch.setattr(model, "extend", extended)
    with torch.no_grad():
        model.response_hidden([prompt], [0, 0], [torch.arange(5, 9), torch.arange(5, 8)])
    assert alive == [False]
