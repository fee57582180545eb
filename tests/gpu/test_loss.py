"""The kernels of the loss and the head in half precision, against plain PyTorch in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from bas_opd.compute import compiling
from bas_opd.compute.compiling import has_triton as triton_works
from bas_opd.distill.divergence import Support
from bas_opd.distill.explicit import Gradient, block_topk, compare
from bas_opd.distill.kernels import block_summaries, scaled_softmax
from bas_opd.distill.loss import DistillSettings
from bas_opd.model.head import Head, add_product

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
VOCABULARY = 248_320


def choose(monkeypatch: pytest.MonkeyPatch, *, has_triton: bool) -> None:
    """Compute with our kernels, or as on a machine without Triton."""
    if has_triton and not triton_works():
        pytest.skip("needs Triton")
    monkeypatch.setattr(compiling, "has_triton", lambda: has_triton)


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


def dense(gradient: Gradient, vocabulary: int) -> Tensor:
    values = gradient.values.double().cpu()
    if gradient.ids is None:
        return values
    return values.new_zeros(len(values), vocabulary).scatter_(-1, gradient.ids.cpu(), values)


@pytest.mark.parametrize("has_triton", [False, True])
@pytest.mark.parametrize("support", ["tail", "renormalise"])
def test_values_and_gradients_are_those_in_float64(
    support: Support, has_triton: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(monkeypatch, has_triton=has_triton)
    student = logits(48, VOCABULARY, 0)
    teacher = student + 0.3 * logits(48, VOCABULARY, 1)
    student[:8, 5] += 60.0  # saturated
    settings = DistillSettings(support=support)
    exact = student.double().cpu()
    expected = compare(exact, teacher.double().cpu(), settings)
    wanted = dense(expected.gradient(exact, 1.0, torch.float64), VOCABULARY)
    found = compare(student, teacher, settings)
    gradient = found.gradient(student, 1.0, torch.float32)
    assert torch.allclose(
        found.divergence.double().cpu(), expected.divergence, rtol=1e-3, atol=1e-9
    )
    assert torch.allclose(found.utility.double().cpu(), expected.utility, rtol=1e-3, atol=1e-9)
    scale = wanted.abs().amax(-1, keepdim=True).clamp_min(1e-30)
    assert float(((dense(gradient, VOCABULARY) - wanted) / scale).abs().max()) < 1e-3


@pytest.mark.parametrize("vocabulary", [151_936 + 5, VOCABULARY])
@pytest.mark.parametrize("k", [1, 100, 128])
def test_kernels_find_the_top_k(vocabulary: int, k: int) -> None:
    values = logits(300, vocabulary, 0)
    values[5] = values[5].round()  # ties
    values[6, 1000:1100] += 100.0
    values[7, 3:] = -torch.inf
    found, index = block_topk(values, block_summaries(values)[0], k)
    assert torch.equal(found, values.gather(-1, index))
    assert torch.equal(found.sort(-1, descending=True).values, values.topk(k).values)
    assert bool((index.diff(dim=-1) > 0).all())
    first = values[5].sort(descending=True, stable=True).indices[:k].sort().values
    assert torch.equal(index[5], first)


@pytest.mark.parametrize("has_triton", [False, True])
@pytest.mark.parametrize("support", ["tail", "renormalise"])
def test_a_logit_that_is_no_number_shows(
    support: Support, has_triton: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One among others that are large; the maximum of a GPU passes over it."""
    choose(monkeypatch, has_triton=has_triton)
    student, teacher = logits(3, VOCABULARY, 0), logits(3, VOCABULARY, 1)
    student[1, 77_777] = torch.nan
    found = compare(student, teacher, DistillSettings(support=support))
    assert found.divergence.isfinite().tolist() == [True, False, True]


@pytest.mark.parametrize("width", [2560, 1000])
def test_kernels_add_gradients_at_some_ids(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most tokens have ids of their own, and all of them a few."""
    draws = torch.Generator("cuda").manual_seed(0)
    weight = torch.randn(20_000, width, generator=draws, device="cuda")
    states = torch.randn(700, width, generator=draws, device="cuda").bfloat16()
    own = torch.rand(700, 19_997, generator=draws, device="cuda").topk(97).indices + 3
    ids = torch.cat([torch.arange(3, device="cuda").expand(700, 3), own], dim=-1)
    values = torch.randn(700, 100, generator=draws, device="cuda").bfloat16()
    grads: list[Tensor] = []
    for has_triton in (False, True, True):
        choose(monkeypatch, has_triton=has_triton)
        head = Head(nn.Parameter(weight.clone()), torch.bfloat16)
        back = head.backward(states, values, ids)
        assert head.weight.grad is not None
        grads += [back.float(), head.weight.grad]
    back, of_weights, *others = grads
    assert float((others[0] - back).norm() / back.norm()) < 1e-2  # rounded to bf16
    assert float((others[1] - of_weights).norm() / of_weights.norm()) < 1e-5
    assert torch.equal(others[0], others[2])
    assert torch.equal(others[1], others[3])


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
