"""D_alpha and u against references that share no code with them."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import Tensor

from bas_opd.distill import Support, query_utility, topk_divergence

VOCAB = 23


def logits(seed: int, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (2, 5, VOCAB)
    student, teacher = (
        scale * torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    return student, teacher


def plain_divergence(
    student: Tensor, teacher: Tensor, k: int, alpha: float, support: Support
) -> Tensor:
    """Probabilities and sums, position by position, from full logits."""
    result = torch.zeros(student.shape[:-1], dtype=torch.float64)
    for place in [(r, t) for r in range(student.shape[0]) for t in range(student.shape[1])]:
        p, q = (_softmax(x[place].tolist()) for x in (student, teacher))
        top = sorted(range(len(p)), key=lambda v: -p[v])[:k]
        s, t = [p[v] for v in top], [q[v] for v in top]
        if support == "renormalise":
            s, t = [x / sum(s) for x in s], [x / sum(t) for x in t]
        elif k < len(p):
            s, t = [*s, 1 - sum(s)], [*t, 1 - sum(t)]
        if alpha == 0:
            result[place] = _kl(t, s)
        elif alpha == 1:
            result[place] = _kl(s, t)
        else:
            m = [(1 - alpha) * a + alpha * b for a, b in zip(s, t, strict=True)]
            result[place] = (1 - alpha) * _kl(s, m) + alpha * _kl(t, m)
    return result


def plain_utility(student: Tensor, teacher: Tensor, mask: Tensor, k: int) -> list[float]:
    """u by its definition: sets for o, entropies for c, a mean over valid tokens."""
    d = plain_divergence(student, teacher, k, 0.5, "renormalise")
    rows = []
    for r in range(student.shape[0]):
        total = 0.0
        for t in range(student.shape[1]):
            if not mask[r, t]:
                continue
            p, q = (_softmax(x[r, t].tolist()) for x in (student, teacher))
            top_s, top_t = (sorted(range(len(x)), key=lambda v: -x[v])[:k] for x in (p, q))
            overlap = len(set(top_s) & set(top_t)) / k
            renormalised = [q[v] / sum(q[v] for v in top_s) for v in top_s]
            entropy = -sum(x * math.log(x) for x in renormalised)
            total += float(d[r, t]) * overlap * (1 - entropy / math.log(k))
        rows.append(total / max(1, int(mask[r].sum())))
    return rows


def _softmax(values: list[float]) -> list[float]:
    top = max(values)
    weights = [math.exp(v - top) for v in values]
    return [w / sum(weights) for w in weights]


def _kl(left: list[float], right: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(left, right, strict=True) if a > 0)


@pytest.mark.parametrize("support", ["tail", "renormalise"])
@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("k", [1, 2, 7, VOCAB, VOCAB + 100])
def test_the_divergence_equals_its_definition(support: Support, alpha: float, k: int) -> None:
    student, teacher = logits(seed=k)
    ours = topk_divergence(student, teacher, k=k, alpha=alpha, support=support)
    torch.testing.assert_close(
        ours, plain_divergence(student, teacher, k, alpha, support), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("support", ["tail", "renormalise"])
def test_at_full_vocabulary_value_and_gradient_equal_those_of_trl(
    alpha: float, support: Support
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl.experimental.gkd import GKDTrainer
    student, teacher = logits(seed=3)
    ours, theirs = student.clone().requires_grad_(), student.clone().requires_grad_()
    mine = topk_divergence(ours, teacher, k=VOCAB, alpha=alpha, support=support).sum()
    reference = GKDTrainer.generalized_jsd_loss(theirs, teacher, beta=alpha, reduction="sum")
    torch.testing.assert_close(mine, reference)
    (gradient,) = torch.autograd.grad(mine, ours)
    torch.testing.assert_close(gradient, *torch.autograd.grad(reference, theirs))


@pytest.mark.parametrize("k", [2, 5, VOCAB])
def test_the_utility_equals_its_definition(k: int) -> None:
    student, teacher = logits(seed=10 + k)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    ours = query_utility(student, teacher, mask, k=k)
    assert ours.tolist() == pytest.approx(plain_utility(student, teacher, mask, k), rel=1e-9)


def test_the_constants_of_a_hand_computed_position() -> None:
    # Student (1/2, 1/4, 1/4), teacher (1/4, 1/4, 1/2), k = 2: the student's top two are 0 and 1.
    student = torch.tensor([[[0.5, 0.25 + 1e-9, 0.25 - 1e-9]]], dtype=torch.float64).log()
    teacher = torch.tensor([[[0.25, 0.25, 0.5]]], dtype=torch.float64).log()
    tail = topk_divergence(student, teacher, k=2, alpha=1.0, support="tail")
    assert tail.item() == pytest.approx(0.5 * math.log(2) + 0.25 * math.log(0.5), abs=1e-7)
    kept = topk_divergence(student, teacher, k=2, alpha=1.0, support="renormalise")
    expected = 2 / 3 * math.log(4 / 3) + 1 / 3 * math.log(2 / 3)
    assert kept.item() == pytest.approx(expected, abs=1e-7)
