"""D_alpha between teacher and student on the student's top-k tokens (Eq. 3, Sec. 3.1)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from bas_opd.errors import ModelError
from bas_opd.types import FullLogits, TokenScores, at_least_fp32

Support = Literal["tail", "renormalise"]

# Stands in for log 0: its exponential is 0 and its differences stay finite in fp32, so a token
# that one side rules out adds nothing, forward or back, where -inf would give NaN.
LOG_ZERO = -1e30
# The top-k mass rounds to 1 on peaked distributions; the tail then needs a floor.
LARGEST_LOG_MASS = -1e-7


def topk_divergence(
    student_logits: Tensor,
    teacher_logits: Tensor,
    *,
    k: int,
    alpha: float,
    support: Support,
) -> Tensor:
    """Return D_alpha for every position: logits `[row, token, vocab]` to `[row, token]`, in nats.

    With 0 < alpha < 1 it is (1 - alpha) KL(S || M) + alpha KL(T || M) of the mixture
    M = (1 - alpha) S + alpha T. That vanishes at both ends, so they are defined apart: alpha = 0
    gives KL(T || S) and alpha = 1 gives KL(S || T). S and T are the true probabilities of the
    student's top-k tokens with one bucket for the rest (`tail`), or those of the k tokens
    renormalised. No gradient reaches the teacher.
    """
    if student_logits.shape != teacher_logits.shape:
        raise ValueError(
            f"Student logits {tuple(student_logits.shape)} and teacher logits "
            f"{tuple(teacher_logits.shape)} must have the same shape."
        )
    index = student_topk(student_logits, k)
    teacher = FullLogits(teacher_logits)
    return divergence_on(student_logits, teacher, index, alpha=alpha, support=support)


def student_topk(student_logits: Tensor, k: int) -> Tensor:
    """Return the indices of the student's k likeliest tokens, k being at most the vocabulary."""
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}.")
    return student_logits.detach().topk(min(k, student_logits.shape[-1]), dim=-1).indices


def divergence_on(
    student_logits: Tensor,
    teacher: TokenScores,
    index: Tensor,
    *,
    alpha: float,
    support: Support,
) -> Tensor:
    """Return D_alpha on given token indices, for callers that have the student's top-k already."""
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha must lie between 0 and 1, not {alpha}.")
    if support == "renormalise":
        student = renormalised(student_logits.gather(-1, index))
        return jensen_shannon(student, renormalised(known(teacher.scores(index))), alpha=alpha)
    if support == "tail":
        has_tail = index.shape[-1] < student_logits.shape[-1]
        student = at_least_fp32(student_logits).log_softmax(-1).gather(-1, index)
        return jensen_shannon(
            _with_tail(student, has_tail=has_tail),
            _with_tail(known(teacher.logprobs(index)), has_tail=has_tail),
            alpha=alpha,
        )
    raise ValueError(f"support must be 'tail' or 'renormalise', not {support!r}.")


def known(scores: Tensor | None) -> Tensor:
    """Return what a teacher knows at the student's tokens; raise if that is nothing."""
    if scores is None:
        raise ModelError(
            "The teacher does not know the log-probs of the student's likeliest tokens, so the two "
            "cannot be compared. Use a teacher that returns log-probs at given token ids."
        )
    return scores


def jensen_shannon(student: Tensor, teacher: Tensor, *, alpha: float) -> Tensor:
    """Return D_alpha of two log-distributions along their last axis."""
    if alpha == 0.0:
        return _kl(teacher, student)
    if alpha == 1.0:
        return _kl(student, teacher)
    mixed = mixture(student, teacher, alpha)
    return (1.0 - alpha) * _kl(student, mixed) + alpha * _kl(teacher, mixed)


def mixture(student: Tensor, teacher: Tensor, alpha: float) -> Tensor:
    """Return log M with M = (1 - alpha) S + alpha T, for 0 < alpha < 1."""
    return torch.logaddexp(student + math.log1p(-alpha), teacher + math.log(alpha))


def renormalised(scores: Tensor) -> Tensor:
    """Return log-probs renormalised over the last axis, from logits or log-probs of some tokens."""
    return at_least_fp32(scores).clamp_min(LOG_ZERO).log_softmax(-1)


def _with_tail(logprobs: Tensor, *, has_tail: bool) -> Tensor:
    """Return the log-probs of the top-k tokens, and of all other tokens as one bucket."""
    chosen = logprobs.clamp_min(LOG_ZERO)
    if not has_tail:
        return chosen
    mass = chosen.logsumexp(-1, keepdim=True).clamp_max(LARGEST_LOG_MASS)
    return torch.cat([chosen, torch.log(-torch.expm1(mass))], dim=-1)


def _kl(left: Tensor, right: Tensor) -> Tensor:
    return (left.exp() * (left - right)).sum(-1)
