"""The kernels of the loss, in Triton's interpreter, against plain PyTorch."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bas_opd.compute.compiling import NEW_KERNELS
from bas_opd.distill import kernels
from bas_opd.distill.divergence import Support
from bas_opd.distill.explicit import block_topk, compare, rest_of
from bas_opd.distill.loss import DistillSettings
from bas_opd.model import head
from bas_opd.model.head import Head

VOCABULARIES = (64 * 7, 64 * 7 + 1, 3000, 64 * 130 - 1)


class Looking(Tensor):
    """A tensor of the CPU that says that it is on a GPU, and so do results from it."""

    is_cuda = True  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def triton_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tensors of the CPU reach the kernels."""
    found = importlib.import_module("bas_opd.distill.triton_kernels")
    monkeypatch.setattr(kernels, "_kernels", lambda: found)
    monkeypatch.setattr(head, "has_triton", lambda: True)
    monkeypatch.setenv(NEW_KERNELS, "loss")


def on_kernels(function: Any, logits: Tensor, *given: Any) -> Any:
    return function(logits.as_subclass(Looking), *given)


def plain(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(Tensor)


def difficult(vocabulary: int, *, seed: int = 0) -> Tensor:
    """Return logits with ties, neighbours that are all large, and tokens that are ruled out."""
    logits = 4 * torch.randn(8, vocabulary, generator=torch.Generator().manual_seed(seed))
    logits[1] = logits[1].round()
    logits[2, 70:90] += 100.0
    logits[3, 3:] = -torch.inf
    logits[4, :64] = -torch.inf
    logits[5] = 0.0
    logits[6, ::2] *= -0.0
    logits[7, -1], logits[7, 5] = torch.inf, 1e-40
    return logits


@pytest.mark.parametrize("vocab", [64, 65, 640, 64 * 32 + 7])
def test_summaries_of_blocks(vocab: int) -> None:
    torch.manual_seed(vocab)
    logits = 5 * torch.randn(3, vocab)
    logits[1, : min(64, vocab)] = -torch.inf
    expected = kernels.block_summaries(logits)
    found = on_kernels(kernels.block_summaries, logits)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("vocab", [50, 4096, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_the_rest(vocab: int, dtype: torch.dtype) -> None:
    torch.manual_seed(vocab)
    logits, normaliser, scale = torch.randn(3, vocab), torch.randn(3) + 9, torch.randn(3)
    logits[0, 1] = -torch.inf
    expected = kernels.scaled_softmax(logits, normaliser, scale, torch.float32)
    found = on_kernels(kernels.scaled_softmax, logits, normaliser, scale, dtype)
    assert found.dtype is dtype
    rounding = 1e-5 if dtype is torch.float32 else 2**-7
    assert torch.allclose(found.float(), expected, rtol=rounding, atol=1e-8)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("k", [1, 5, 6])
def test_the_top_k_are_those_of_a_sort_and_the_first_of_equal_ones(vocabulary: int, k: int) -> None:
    logits = difficult(vocabulary)
    logits[6].clamp_(min=0.0)
    assert kernels.has_kernels(logits.as_subclass(Looking), k)
    top, index = on_kernels(block_topk, logits, kernels.block_summaries(logits)[0], k)
    expected = logits.sort(dim=-1, descending=True, stable=True).indices[:, :k].sort(-1).values
    # Zeros of both signs are equal to a sort, and not to the kernel.
    kept = [row for row in range(len(logits)) if row != 6]
    assert torch.equal(plain(index)[kept], expected[kept])
    assert torch.equal(plain(top), logits.gather(-1, plain(index)))
    assert torch.equal(plain(top).sort(-1).values, logits.topk(k).values.sort(-1).values)


def test_many_tokens_are_chosen_from_many_blocks() -> None:
    logits = 3 * torch.randn(3, 64 * 130, generator=torch.Generator().manual_seed(0))
    for k in (100, 127, 128):
        _, index = on_kernels(block_topk, logits, kernels.block_summaries(logits)[0], k)
        assert torch.equal(plain(index), logits.topk(k).indices.sort(-1).values)
    assert not kernels.has_kernels(logits.as_subclass(Looking), 129)
    assert not kernels.has_kernels(logits[:, : 64 * 9].as_subclass(Looking), 9)
    assert not kernels.has_kernels(logits.double().as_subclass(Looking), 9)


def test_logits_that_are_not_numbers_are_chosen_within_the_vocabulary() -> None:
    logits = torch.full((3, 64 * 9 + 3), torch.nan)
    logits[1:] = torch.arange(64 * 9 + 3)
    logits[1, 7] = torch.nan
    # One with its sign set is lower than all numbers, if its bits are compared as they are.
    logits[2].view(torch.int32)[7] = 0xFFC00000 - 2**32
    largest, _ = on_kernels(kernels.block_summaries, logits)
    assert plain(largest)[:, 0].isnan().all()
    top, index = on_kernels(block_topk, logits, largest, 8)
    assert plain(index).amin() >= 0
    assert plain(index).amax() < logits.shape[-1]
    assert plain(index)[1:, 0].tolist() == [7, 7]
    assert plain(top)[1:, 0].isnan().all()


def test_logits_may_be_part_of_others() -> None:
    wide = difficult(3000)[:7]
    part = wide[:, :900]
    largest, summed = kernels.block_summaries(part)
    top, index = on_kernels(block_topk, part, largest, 5)
    assert torch.equal(plain(top).sort(-1).values, part.topk(5).values.sort(-1).values)
    expected = part.scatter(-1, plain(index), -torch.inf).logsumexp(-1)
    found = on_kernels(rest_of, part, summed, plain(index))
    assert torch.allclose(plain(found), expected, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_the_rest_is_the_log_sum_exp_of_all_other_logits(vocabulary: int) -> None:
    logits = difficult(vocabulary)[:7]
    summed = kernels.block_summaries(logits)[1]
    for k in (1, 5, 6):
        index = torch.stack([torch.randperm(vocabulary)[:k].sort().values for _ in range(7)])
        index[0] = torch.arange(k) + 62  # The first two are in one block, the others in the next.
        index[3] = torch.arange(k)
        others = logits.scatter(-1, index, -torch.inf)
        overwritten = logits.clone()
        found = plain(on_kernels(rest_of, overwritten, summed, index))
        assert torch.equal(overwritten, others)
        assert torch.allclose(found, others.logsumexp(-1), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("support", ["tail", "renormalise"])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("k", [1, 7])
def test_a_chunk_is_compared_as_in_plain_pytorch(support: Support, alpha: float, k: int) -> None:
    vocabulary, settings = 64 * 9 + 5, DistillSettings(k=k, alpha=alpha, support=support)
    student = 4 * torch.randn(12, vocabulary, generator=torch.Generator().manual_seed(0))
    teacher = student + torch.randn(12, vocabulary, generator=torch.Generator().manual_seed(1))
    student[2:5, 9] += 40.0
    results: list[dict[str, Tensor]] = []
    for kind in (Tensor, Looking):
        ours = student.clone().as_subclass(kind)
        found = compare(ours, teacher.clone().as_subclass(kind), settings)
        gradient = found.gradient(ours, 0.5, torch.float32)
        values = plain(gradient.values)
        if gradient.ids is not None:
            values = torch.zeros_like(student).scatter_(-1, plain(gradient.ids), values)
        of_each = {"divergence": found.divergence, "utility": found.utility, "gradient": values}
        results.append({name: plain(value) for name, value in of_each.items()})
    for name, expected in results[0].items():
        assert torch.allclose(results[1][name], expected, rtol=1e-4, atol=1e-8), name


@pytest.mark.parametrize("width", [24, 256, 1030])
@pytest.mark.parametrize("is_trained", [True, False])
def test_gradients_at_some_ids_reach_states_and_weights(width: int, is_trained: bool) -> None:
    draws = torch.Generator().manual_seed(width)
    tokens, k, vocabulary = 37, 18, 60  # Most ids are those of many tokens.
    weight = torch.randn(vocabulary, width, generator=draws)
    states = torch.randn(tokens, width, generator=draws)
    values = torch.randn(k, tokens, generator=draws).bfloat16().T
    ids = torch.stack([torch.randperm(vocabulary, generator=draws)[:k] for _ in range(tokens)])
    ids[:, 0] = torch.where((ids == 0).any(-1), ids[:, 0], 0)  # which every token has
    ids = ids.T.contiguous().T
    before = torch.randn(vocabulary, width, generator=draws)
    found: list[tuple[Tensor, Tensor | None]] = []
    for kind in (Tensor, Looking):
        parameter = nn.Parameter(weight.clone(), requires_grad=is_trained)
        parameter.grad = before.clone() if is_trained else None
        back = Head(parameter, torch.bfloat16).backward(states, values.as_subclass(kind), ids)
        found.append((plain(back), parameter.grad))
    (expected, of_weights), (back, gradient) = found
    assert torch.allclose(back, expected, rtol=1e-4, atol=1e-4)
    assert (gradient is not None) == is_trained
    if gradient is not None and of_weights is not None:
        assert torch.allclose(gradient, of_weights, rtol=1e-4, atol=1e-3)
        assert not torch.allclose(gradient, before)


@pytest.mark.parametrize("odd", ["transposed", "bfloat16", "many"])
def test_other_weights_and_many_ids_are_left_to_products(odd: str) -> None:
    draws = torch.Generator().manual_seed(0)
    weight = torch.randn(300, 24, generator=draws)
    weight = weight.T.contiguous().T if odd == "transposed" else weight
    weight = weight.bfloat16() if odd == "bfloat16" else weight
    k = 130 if odd == "many" else 5
    values = torch.randn(4, k, generator=draws).bfloat16()
    assert not Head(nn.Parameter(weight), torch.bfloat16)._has_kernels(values.as_subclass(Looking))
    usual = Head(nn.Parameter(torch.randn(300, 24)), torch.bfloat16)
    assert usual._has_kernels(values[:, :5].as_subclass(Looking))
