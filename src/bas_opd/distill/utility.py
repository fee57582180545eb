"""What a teacher query turned out to be worth: u = d * o * c (Eqs. 7-9)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bas_opd.distill.divergence import jensen_shannon, renormalised, student_topk


@torch.no_grad()
def query_utility(
    student_logits: Tensor,
    teacher_logits: Tensor,
    mask: Tensor,
    *,
    k: int,
    use_overlap: bool = True,
    use_confidence: bool = True,
) -> Tensor:
    """Return u for every row, the mean of d * o * c over its valid tokens (Eq. 9), detached.

    Logits are `[row, token, vocab]`, the mask `[row, token]`. A row without valid tokens has u = 0.
    The two switches are the ablations d * c and d * o (Table 4).
    """
    per_token = token_utility(
        student_logits,
        teacher_logits,
        student_topk(student_logits, k),
        use_overlap=use_overlap,
        use_confidence=use_confidence,
    )
    valid = mask.bool()
    return per_token.where(valid, 0.0).sum(-1) / valid.sum(-1).clamp_min(1)


@torch.no_grad()
def token_utility(
    student_logits: Tensor,
    teacher_logits: Tensor,
    index: Tensor,
    *,
    use_overlap: bool = True,
    use_confidence: bool = True,
) -> Tensor:
    """Return d * o * c for every position, given the student's top-k indices."""
    student = renormalised(student_logits, index)
    teacher = renormalised(teacher_logits, index)
    utility = jensen_shannon(student, teacher, alpha=0.5)
    if use_overlap:
        utility = utility * topk_overlap(teacher_logits, index)
    if use_confidence:
        utility = utility * teacher_confidence(teacher)
    return utility


def topk_overlap(teacher_logits: Tensor, index: Tensor) -> Tensor:
    """Return o, the share of the student's top-k that is in the teacher's own top-k."""
    k = index.shape[-1]
    own = teacher_logits.topk(k, dim=-1).indices.sort(dim=-1).values
    place = torch.searchsorted(own, index.contiguous()).clamp_max(k - 1)
    return (own.gather(-1, place) == index).to(_at_least_fp32(teacher_logits)).mean(-1)


def teacher_confidence(teacher: Tensor) -> Tensor:
    """Return c = 1 - H(P_T) / log k (Eq. 8) of renormalised log-probabilities; 1 where k is 1."""
    k = teacher.shape[-1]
    if k == 1:
        return torch.ones_like(teacher[..., 0])
    return 1.0 + (teacher.exp() * teacher).sum(-1) / math.log(k)


def _at_least_fp32(logits: Tensor) -> torch.dtype:
    return torch.promote_types(logits.dtype, torch.float32)
