"""The kernels of the loss and the head in half precision, against plain PyTorch in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from bas_opd.distill.divergence import Support
from bas_opd.distill.explicit import compare
from bas_opd.distill.kernels import block_summaries, scaled_softmax
from bas_opd.distill.loss import DistillSettings
from bas_opd.model.head import Head, add_product

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
VOCABULARY = 248_320


def logits(tokens: int, vocabulary: int, seed: int) -> Tensor:
    draws = torch.Generator("cuda").manual_seed(seed)
    return 3.0 * torch.randn(tokens, vocabulary, generator=draws, device="cuda")


@pytest.mark.parametrize("vocabulary", [63, 1000, 151_936 + 5, VOCABULARY])
def test_the_passes_over_the_logits_are_those_of_the_cpu(vocabulary: int) -> None:
    values = logits(37, vocabulary, 0)
    values[3, :40] = -torch.inf
    for found, expected in zip(block_summaries(values), block_summaries(values.cpu()), strict=True):
        assert torch.allclose(found.cpu(), expected, rtol=1e-5, atol=1e-5)
    normaliser, scale = values.logsumexp(-1), logits(1, 37, 1)[0]
    found = scaled_softmax(values, normaliser, scale, torch.float32)
    expected = scale[:, None] * torch.exp(values - normaliser[:, None])
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("support", ["tail", "renormalise"])
def test_values_and_gradients_are_those_in_float64(support: Support) -> None:
    student = logits(48, VOCABULARY, 0)
    teacher = student + 0.3 * logits(48, VOCABULARY, 1)
    student[:8, 5] += 60.0  # saturated
    settings = DistillSettings(support=support)
    exact = student.double().cpu()
    expected = compare(exact, teacher.double().cpu(), settings)
    wanted = expected.gradient(exact, 1.0, torch.float64)
    found = compare(student, teacher, settings)
    gradient = found.gradient(student, 1.0, torch.float32)
    assert torch.allclose(
        found.divergence.double().cpu(), expected.divergence, rtol=1e-3, atol=1e-9
    )
    assert torch.allclose(found.utility.double().cpu(), expected.utility, rtol=1e-3, atol=1e-9)
    scale = wanted.values.abs().amax(-1, keepdim=True).clamp_min(1e-30)
    assert gradient.values.shape == wanted.values.shape
    assert float(((gradient.values.double().cpu() - wanted.values) / scale).abs().max()) < 1e-3


def test_products_have_fp32_sums_and_add_up() -> None:
    weight = nn.Parameter(torch.randn(5000, 256, device="cuda"))
    head, hidden = Head(weight, torch.bfloat16), torch.randn(64, 256, device="cuda")
    exact = hidden.bfloat16().double() @ weight.detach().bfloat16().double().T
    assert float((head.logits(hidden).detach().double() - exact).abs().max()) < 1e-3
    gradient = torch.randn(64, 5000, device="cuda").bfloat16()
    first = head.backward(hidden, gradient)
    assert weight.grad is not None
    once = weight.grad.clone()
    head.backward(hidden, gradient)
    assert torch.allclose(weight.grad, 2 * once, rtol=1e-5, atol=1e-4)
    assert first.shape == hidden.shape
    total = torch.ones(5000, 256, device="cuda")
    add_product(total, gradient.T, hidden.bfloat16())
    assert torch.allclose(total, once + 1, rtol=1e-5, atol=1e-4)


def test_a_fused_optimizer_step_reaches_the_rounded_weights() -> None:
    weight = nn.Parameter(torch.randn(500, 64, device="cuda"))
    head, hidden = Head(weight, torch.bfloat16), torch.randn(4, 64, device="cuda")
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    optimizer.register_step_post_hook(head.forget)
    before = head.logits(hidden)
    before.sum().backward()
    optimizer.step()
    assert not torch.allclose(head.logits(hidden), before)
