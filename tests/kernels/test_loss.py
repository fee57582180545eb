"""The kernels of the loss, in Triton's interpreter, against plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bas_opd.distill import kernels
from bas_opd.distill.divergence import Support
from bas_opd.distill.explicit import block_topk, compare, rest_of
from bas_opd.distill.loss import DistillSettings
from bas_opd.model import head
from bas_opd.model.head import Head

VOCABULARIES = (64 * 7, 64 * 7 + 1, 3000, 64 * 130 - 1)


def on_kernels(function: Callable[..., Any], *given: Any) -> Any:
    """Call a function where a CPU computes as a GPU with Triton does."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (kernels, head):
            patch.setattr(module, "has_kernels", lambda _: True)
        return function(*given)


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
    assert on_kernels(kernels.can_fuse, logits, k)
    top, index = on_kernels(block_topk, logits, kernels.block_summaries(logits)[0], k)
    expected = logits.sort(dim=-1, descending=True, stable=True).indices[:, :k].sort(-1).values
    # Zeros of both signs are equal to a sort, and not to the kernel.
    kept = [row for row in range(len(logits)) if row != 6]
    assert torch.equal(index[kept], expected[kept])
    assert torch.equal(top, logits.gather(-1, index))
    assert torch.equal(top.sort(-1).values, logits.topk(k).values.sort(-1).values)


def test_many_tokens_are_chosen_from_many_blocks() -> None:
    logits = 3 * torch.randn(3, 64 * 130, generator=torch.Generator().manual_seed(0))
    for k in (100, 127, 128):
        _, index = on_kernels(block_topk, logits, kernels.block_summaries(logits)[0], k)
        assert torch.equal(index, logits.topk(k).indices.sort(-1).values)
    assert not on_kernels(kernels.can_fuse, logits, 129)
    assert not on_kernels(kernels.can_fuse, logits[:, : 64 * 9], 9)
    assert not on_kernels(kernels.can_fuse, logits.double(), 9)


def test_logits_that_are_not_numbers_are_chosen_within_the_vocabulary() -> None:
    logits = torch.full((3, 64 * 9 + 3), torch.nan)
    logits[1:] = torch.arange(64 * 9 + 3)
    logits[1, 7] = torch.nan
    # One with its sign set is lower than all numbers, if its bits are compared as they are.
    logits[2].view(torch.int32)[7] = 0xFFC00000 - 2**32
    largest, _ = on_kernels(kernels.block_summaries, logits)
    assert largest[:, 0].isnan().all()
    top, index = on_kernels(block_topk, logits, largest, 8)
    assert index.amin() >= 0
    assert index.amax() < logits.shape[-1]
    assert index[1:, 0].tolist() == [7, 7]
    assert top[1:, 0].isnan().all()


def test_logits_may_be_part_of_others() -> None:
    wide = difficult(3000)[:7]
    part = wide[:, :900]
    largest, summed = kernels.block_summaries(part)
    top, index = on_kernels(block_topk, part, largest, 5)
    assert torch.equal(top.sort(-1).values, part.topk(5).values.sort(-1).values)
    expected = part.scatter(-1, index, -torch.inf).logsumexp(-1)
    found = on_kernels(rest_of, part, summed, index)
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-5)


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
        found = on_kernels(rest_of, overwritten, summed, index)
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

    def results() -> dict[str, Tensor]:
        ours = student.clone()
        found = compare(ours, teacher.clone(), settings)
        gradient = found.gradient(ours, 0.5, torch.float32)
        values = gradient.values
        if gradient.ids is not None:
            values = torch.zeros_like(student).scatter_(-1, gradient.ids, values)
        return {"divergence": found.divergence, "utility": found.utility, "gradient": values}

    ours = on_kernels(results)
    for name, expected in results().items():
        assert torch.allclose(ours[name], expected, rtol=1e-4, atol=1e-8), name


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

    def gradients() -> tuple[Tensor, Tensor | None]:
        parameter = nn.Parameter(weight.clone(), requires_grad=is_trained)
        parameter.grad = before.clone() if is_trained else None
        return Head(parameter, torch.bfloat16).backward(states, values, ids), parameter.grad

    (expected, of_weights), (back, gradient) = gradients(), on_kernels(gradients)
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
    assert not on_kernels(Head(nn.Parameter(weight), torch.bfloat16)._has_kernels, values)
    usual = Head(nn.Parameter(torch.randn(300, 24)), torch.bfloat16)
    assert on_kernels(usual._has_kernels, values[:, :5])
