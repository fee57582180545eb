"""What a teacher query turned out to be worth: u = d * o * c (Eqs. 7-9)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bas_opd.distill.divergence import jensen_shannon, known, renormalised, student_topk
from bas_opd.types import FullLogits, TokenScores


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
        FullLogits(teacher_logits),
        student_topk(student_logits, k),
        use_overlap=use_overlap,
        use_confidence=use_confidence,
    )
    valid = mask.bool()
    return per_token.where(valid, 0.0).sum(-1) / valid.sum(-1).clamp_min(1)


@torch.no_grad()
def token_utility(
    student_logits: Tensor,
    teacher: TokenScores,
    index: Tensor,
    *,
    use_overlap: bool = True,
    use_confidence: bool = True,
    support: Tensor | None = None,
) -> Tensor:
    """Return d * o * c for every position, given the student's top-k indices.

    A teacher that is known at a `support` of its own is compared there in d and c.
    """
    at = index if support is None else support
    student = renormalised(student_logits.gather(-1, at))
    on_support = renormalised(known(teacher.scores(at)))
    utility = jensen_shannon(student, on_support, alpha=0.5)
    # Without the teacher's own top-k, o counts as 1.
    if use_overlap and (own := teacher.topk(index.shape[-1])) is not None:
        utility = utility * topk_overlap(own, index, dtype=utility.dtype)
    if use_confidence:
        utility = utility * teacher_confidence(on_support)
    return utility


def topk_overlap(own: Tensor, index: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return o, the share of the student's top-k ids that are in the teacher's own top-k."""
    return ascending_overlap(own.sort(dim=-1).values, index, dtype=dtype)


def ascending_overlap(
    ordered: Tensor, index: Tensor, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return o where the teacher's ids ascend already."""
    place = torch.searchsorted(ordered, index.contiguous()).clamp_max(index.shape[-1] - 1)
    return (ordered.gather(-1, place) == index).to(dtype).mean(-1)


def teacher_confidence(teacher: Tensor) -> Tensor:
    """Return c = 1 - H(P_T) / log k (Eq. 8) of renormalised log-probabilities; 1 where k is 1."""
    k = teacher.shape[-1]
    if k == 1:
        return torch.ones_like(teacher[..., 0])
    return 1.0 + (teacher.exp() * teacher).sum(-1) / math.log(k)
