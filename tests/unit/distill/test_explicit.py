"""The explicit form of loss and utility has the values and gradients of the plain one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bas_opd.distill.divergence import Support, divergence_on, student_topk
from bas_opd.distill.explicit import Gradient, block_topk, compare, rest_of
from bas_opd.distill.kernels import BLOCK, block_summaries, scaled_softmax
from bas_opd.distill.loss import DistillSettings
from bas_opd.distill.utility import token_utility
from bas_opd.types import FullLogits

VOCABULARIES = (7, 64, 100, 1000, 64 * 40, 64 * 40 + 1)


def logits(tokens: int, vocabulary: int, *, seed: int = 0, scale: float = 3.0) -> Tensor:
    draws = torch.Generator().manual_seed(seed)
    return scale * torch.randn(tokens, vocabulary, generator=draws, dtype=torch.float64)


def plain(
    student: Tensor, teacher: Tensor, settings: DistillSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """Divergence, utility and the gradient of the sum of divergences, by autograd."""
    student = student.clone().requires_grad_()
    index, scores = student_topk(student, settings.k), FullLogits(teacher)
    divergence = divergence_on(
        student, scores, index, alpha=settings.alpha, support=settings.support
    )
    (gradient,) = torch.autograd.grad(divergence.sum(), student)
    utility = token_utility(
        student,
        scores,
        index,
        use_overlap=settings.use_overlap,
        use_confidence=settings.use_confidence,
    )
    return divergence.detach(), utility, gradient


def dense(gradient: Gradient, logits: Tensor) -> Tensor:
    if gradient.ids is None:
        return gradient.values
    return torch.zeros_like(logits).scatter_(-1, gradient.ids, gradient.values)


@pytest.mark.parametrize("support", ["tail", "renormalise"])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_values_and_gradients_are_those_of_the_plain_form(
    vocabulary: int, alpha: float, support: Support
) -> None:
    student = logits(9, vocabulary)
    teacher = student + logits(9, vocabulary, seed=1, scale=1.0)
    for k in (1, 5, 20):
        settings = DistillSettings(k=k, alpha=alpha, support=support)
        expected = plain(student, teacher, settings)
        others = student.clone()
        found = compare(others, teacher.clone(), settings)
        gradient = dense(found.gradient(others, 0.25, torch.float64), student)
        assert torch.allclose(found.divergence, expected[0], rtol=1e-9, atol=1e-12)
        assert torch.allclose(found.utility, expected[1], rtol=1e-9, atol=1e-12)
        assert torch.allclose(gradient, 0.25 * expected[2], rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_the_top_k_are_found_in_a_few_blocks(vocabulary: int) -> None:
    values = logits(20, vocabulary)
    values[:, : vocabulary // 2] = values[:, : vocabulary // 2].round()  # ties
    for k in (1, 3, min(30, vocabulary)):
        found, index = block_topk(values, block_summaries(values)[0], k)
        assert torch.equal(found.sort(-1, descending=True).values, values.topk(k, dim=-1).values)
        assert torch.equal(values.gather(-1, index), found)
        assert bool((index.diff(dim=-1) > 0).all())


def test_all_top_tokens_in_one_block_are_found() -> None:
    values = logits(3, 64 * 50)
    values[:, 130:160] += 100.0
    _, index = block_topk(values, block_summaries(values)[0], 30)
    assert torch.equal(index, torch.arange(130, 160).expand(3, 30))


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_the_rest_is_the_log_sum_exp_of_all_other_logits(vocabulary: int) -> None:
    values = logits(6, vocabulary)
    k = min(6, vocabulary - 1)
    index = torch.stack([torch.randperm(vocabulary)[:k].sort().values for _ in range(6)])
    others = values.scatter(-1, index, -math.inf)
    found = rest_of(values, block_summaries(values)[1], index)
    assert torch.allclose(found, others.logsumexp(-1))
    assert torch.equal(values, others)


@pytest.mark.parametrize("margin", [10.0, 20.0, 40.0])
def test_saturated_tokens_keep_their_precision(margin: float) -> None:
    """In fp32, 1 minus the mass of the top-k has no digits left here."""
    student, teacher = logits(8, 2000, scale=1.0), logits(8, 2000, seed=1, scale=1.0)
    student[:, 7] = student.logsumexp(-1) + margin
    teacher[:, 7] = teacher.logsumexp(-1) + margin - 3.0
    settings = DistillSettings(k=5)
    exact = student.clone()
    expected = compare(exact, teacher.clone(), settings)
    gradient = expected.gradient(exact, 1.0, torch.float64).values
    others = student.float()
    found = compare(others, teacher.float(), settings)
    rounded = found.gradient(others, 1.0, torch.float32).values
    # The logits themselves are rounded, to about 1e-6 of an exponent of 40.
    assert torch.allclose(found.divergence.double(), expected.divergence, rtol=2e-4, atol=0)
    scale = gradient.abs().amax(-1, keepdim=True)
    assert float(((rounded.double() - gradient) / scale).abs().max()) < 1e-4


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_tokens_that_are_ruled_out_add_nothing(alpha: float) -> None:
    student, teacher = logits(4, 640), logits(4, 640, seed=1)
    student[0, 3:] = -math.inf  # fewer tokens than k are possible
    teacher[1, :600] = -math.inf
    student[2, :64] = -math.inf  # a whole block
    student[3, 5:], teacher[3, 5:] = -math.inf, -math.inf  # k tokens and no tail
    settings = DistillSettings(k=5, alpha=alpha)
    others = student.clone()
    found = compare(others, teacher.clone(), settings)
    gradient = found.gradient(others, 1.0, torch.float64).values
    assert not gradient[student == -math.inf].any()
    for values in (found.divergence, found.utility, gradient):
        assert values.isfinite().all()


def test_a_logit_that_is_no_number_shows() -> None:
    student = logits(2, 640)
    student[0, 300] = math.nan
    found = compare(student, logits(2, 640, seed=1), DistillSettings(k=5))
    assert not found.divergence[0].isfinite()
    assert found.divergence[1].isfinite()


def test_ablations_of_utility_are_those_of_the_plain_form() -> None:
    student, teacher = logits(5, 640), logits(5, 640, seed=1)
    for overlap, confidence in ((False, True), (True, False), (False, False)):
        settings = DistillSettings(
            k=9, use_overlap=overlap, use_confidence=confidence, support="renormalise"
        )
        expected = plain(student, teacher, settings)[1]
        found = compare(student.clone(), teacher.clone(), settings).utility
        assert torch.allclose(found, expected)


def test_the_passes_over_the_logits_are_what_they_say() -> None:
    values = logits(3, 10 * BLOCK + 5)
    largest, summed = block_summaries(values)
    assert largest.shape == summed.shape == (3, 11)
    assert torch.equal(largest[:, 10], values[:, -5:].amax(-1))
    assert torch.allclose(summed.logsumexp(-1), values.logsumexp(-1))
    scaled = scaled_softmax(
        values, values.logsumexp(-1), torch.tensor([1.0, 2.0, 0.0]), torch.bfloat16
    )
    assert scaled.dtype is torch.bfloat16
    assert scaled.float().sum(-1).tolist() == pytest.approx([1.0, 2.0, 0.0], abs=0.02)
