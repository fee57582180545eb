"""What must hold for any logits."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bas_opd.distill import Support, distillation_loss, query_utility, topk_divergence
from bas_opd.distill.divergence import divergence_on, student_topk
from bas_opd.distill.loss import DistillSettings
from bas_opd.distill.utility import token_utility
from bas_opd.errors import ModelError
from bas_opd.learn import Distillation, PackedRows
from bas_opd.types import FullLogits

SUPPORTS: list[Support] = ["tail", "renormalise"]


def pair(seed: int, scale: float, shape: tuple[int, ...] = (2, 3, 17)) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    student, teacher = (scale * torch.randn(shape, generator=generator) for _ in range(2))
    return student, teacher


@given(
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([0.0, 1.0, 30.0, 1e4, 1e30]),
    k=st.integers(1, 20),
    alpha=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    support=st.sampled_from(SUPPORTS),
)
def test_peaked_logits_give_no_nan_forward_or_back(
    seed: int, scale: float, k: int, alpha: float, support: Support
) -> None:
    student, teacher = pair(seed, scale)
    student.requires_grad_()
    divergence = topk_divergence(student, teacher, k=k, alpha=alpha, support=support)
    utility = query_utility(student, teacher, torch.ones(2, 3), k=k)
    assert not divergence.isnan().any()
    assert not utility.isnan().any()
    (gradient,) = torch.autograd.grad(divergence.sum(), student)
    assert not gradient.isnan().any()
    if 0 < alpha < 1:
        assert gradient.isfinite().all()
        assert (divergence <= math.log(2) + 1e-5).all()


@pytest.mark.parametrize("support", SUPPORTS)
def test_tokens_ruled_out_by_minus_infinity_give_no_nan(support: Support) -> None:
    student, teacher = pair(0, 1.0)
    student[..., 4:] = -torch.inf
    teacher[..., :2] = -torch.inf
    student.requires_grad_()
    divergence = topk_divergence(student, teacher, k=6, alpha=0.5, support=support)
    (gradient,) = torch.autograd.grad(divergence.sum(), student)
    assert divergence.isfinite().all()
    assert gradient.isfinite().all()
    assert query_utility(student, teacher, torch.ones(2, 3), k=6).isfinite().all()


@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_equal_distributions_do_not_diverge(support: Support, alpha: float) -> None:
    student, _ = pair(1, 3.0)
    divergence = topk_divergence(student, student.clone(), k=5, alpha=alpha, support=support)
    torch.testing.assert_close(divergence, torch.zeros(2, 3), atol=1e-6, rtol=0)
    assert query_utility(student, student.clone(), torch.ones(2, 3), k=5).abs().max() < 1e-6


@pytest.mark.parametrize("support", SUPPORTS)
def test_no_gradient_reaches_the_teacher(support: Support) -> None:
    student, teacher = pair(2, 2.0)
    student.requires_grad_()
    teacher.requires_grad_()
    divergence = topk_divergence(student, teacher, k=5, alpha=0.5, support=support).sum()
    divergence.backward()
    assert teacher.grad is None
    assert student.grad is not None
    assert not query_utility(student, teacher, torch.ones(2, 3), k=5).requires_grad


def test_padding_may_hold_anything() -> None:
    student, teacher = pair(3, 2.0)
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    clean = query_utility(student, teacher, mask, k=5)
    student[0, 2] = torch.nan
    teacher[1] = torch.nan
    assert query_utility(student, teacher, mask, k=5).tolist() == clean.tolist()
    assert clean[1] == 0
    divergence = topk_divergence(student, teacher, k=5, alpha=0.5, support="tail")
    assert distillation_loss(divergence, mask).isfinite()


def test_the_ablations_leave_out_their_factor() -> None:
    student, teacher = pair(4, 2.0)
    mask = torch.ones(2, 3)
    whole = query_utility(student, teacher, mask, k=5)
    without_overlap = query_utility(student, teacher, mask, k=5, use_overlap=False)
    without_confidence = query_utility(student, teacher, mask, k=5, use_confidence=False)
    neither = query_utility(student, teacher, mask, k=5, use_overlap=False, use_confidence=False)
    assert (whole < without_overlap).all()
    assert (whole < without_confidence).all()
    assert (without_overlap < neither).all()


def test_the_loss_is_a_token_mean_with_a_clamped_denominator() -> None:
    divergence = torch.tensor([[1.0, 2.0, 9.0], [4.0, 9.0, 9.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert distillation_loss(divergence, mask).item() == pytest.approx(7 / 3)
    assert distillation_loss(divergence, torch.zeros(2, 3)).item() == 0


@pytest.mark.parametrize("tokens_per_chunk", [1, 4, 100])
@pytest.mark.parametrize("support", SUPPORTS)
def test_chunks_change_neither_value_nor_gradient(support: Support, tokens_per_chunk: int) -> None:
    generator = torch.Generator().manual_seed(5)
    hidden, other = (torch.randn(11, 8, generator=generator) for _ in range(2))
    student_head, teacher_head = torch.nn.Linear(8, 17), torch.nn.Linear(8, 17)

    whole = hidden.clone().requires_grad_()
    divergence = topk_divergence(
        student_head(whole)[None], teacher_head(other)[None], k=5, alpha=0.5, support=support
    )
    loss = distillation_loss(divergence, torch.ones(1, 11))
    expected = torch.autograd.grad(loss, [whole, student_head.weight])

    student_head.zero_grad()
    chunked = hidden.clone().requires_grad_()
    scores: Any = SimpleNamespace(
        scored_tokens=11,
        chunks=lambda _, size: (FullLogits(teacher_head(part)) for part in other.split(size)),
    )
    settings = DistillSettings(k=5, support=support, tokens_per_chunk=tokens_per_chunk)
    packed = PackedRows(
        rows=(0,), lengths=(11,), tokens=torch.zeros(11).long(), sampled=torch.zeros(11)
    )
    part = Distillation(scores, student_head, settings)(chunked * 1.0, packed)
    assert part.observed is not None
    torch.testing.assert_close(part.loss, loss.detach())
    torch.testing.assert_close(chunked.grad, expected[0])
    torch.testing.assert_close(student_head.weight.grad, expected[1])
    assert teacher_head.weight.grad is None
    utility = query_utility(
        student_head(hidden)[None], teacher_head(other)[None], torch.ones(1, 11), k=5
    )
    assert part.observed.item() == pytest.approx(utility.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("change", "word"),
    [({"alpha": 1.5}, "alpha"), ({"k": 0}, "k must"), ({"support": "other"}, "support")],
)
def test_a_setting_without_meaning_is_refused(change: dict[str, object], word: str) -> None:
    student, teacher = pair(6, 1.0)
    settings: dict[str, object] = {"k": 5, "alpha": 0.5, "support": "tail"}
    with pytest.raises(ValueError, match=word):
        topk_divergence(student, teacher, **{**settings, **change})  # type: ignore[arg-type]


def test_known_logits_give_log_probs_top_k_and_log_sum_exp() -> None:
    logits = torch.randn(4, 9, dtype=torch.float64, requires_grad=True)
    index = torch.tensor([[0, 8], [3, 1], [2, 2], [7, 5]])
    scores = FullLogits(logits)
    expected = logits.log_softmax(-1).gather(-1, index)
    torch.testing.assert_close(scores.logprobs(index), expected.detach())
    torch.testing.assert_close(
        scores.scores(index) - scores.logsumexp()[:, None], scores.logprobs(index)
    )
    assert torch.equal(scores.topk(3), logits.topk(3).indices)
    assert not scores.scores(index).requires_grad


def test_an_unknown_top_k_of_the_teacher_counts_as_full_overlap() -> None:
    class Served(FullLogits):
        def topk(self, k: int) -> None:  # type: ignore[override]
            return None

    student, teacher = torch.randn(2, 5, 11)
    index = student_topk(student, 4)
    assert torch.equal(
        token_utility(student, Served(teacher), index),
        token_utility(student, FullLogits(teacher), index, use_overlap=False),
    )


def test_a_teacher_that_knows_nothing_at_the_students_tokens_is_refused() -> None:
    class Unknown(FullLogits):
        def scores(self, index: Tensor) -> None:  # type: ignore[override]
            return None

        logprobs = scores  # type: ignore[assignment]

    student, teacher = torch.randn(2, 5, 11)
    for support in SUPPORTS:
        with pytest.raises(ModelError, match="does not know the log-probs"):
            divergence_on(
                student, Unknown(teacher), student_topk(student, 4), alpha=0.5, support=support
            )
