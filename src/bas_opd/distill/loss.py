"""L_BAS over selected valid tokens (Eq. 11), whole or in chunks that never hold all logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bas_opd.distill.divergence import Support, divergence_on, student_topk
from bas_opd.distill.utility import token_utility


def distillation_loss(divergence: Tensor, mask: Tensor) -> Tensor:
    """Return the masked token mean, its denominator clamped to at least one (Eq. 11)."""
    valid = mask.bool()
    return divergence.where(valid, 0.0).sum() / valid.sum().clamp_min(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillSettings:
    """How a token is compared with its teacher."""

    alpha: float = 0.5
    k: int = 100
    support: Support = "tail"
    use_overlap: bool = True
    use_confidence: bool = True
    tokens_per_chunk: int = 512


def backward_in_chunks(
    student_hidden: Tensor,
    teacher_hidden: Tensor,
    *,
    student_head: Callable[[Tensor], Tensor],
    teacher_head: Callable[[Tensor], Tensor],
    denominator: int,
    settings: DistillSettings,
) -> tuple[Tensor, Tensor]:
    """Run the loss backward for packed valid tokens `[token, hidden]`, a chunk of logits at a time.

    Returns this part's share of the loss and d * o * c of every token, both from the same logits.
    Each chunk goes back to its hidden states at once, so the logits of one chunk are all that
    exists; one backward pass through the network follows for all of them.
    """
    chunk = settings.tokens_per_chunk
    leaves = [part.detach().requires_grad_() for part in student_hidden.split(chunk)]
    losses, utilities = [], []
    for leaf, teacher_part in zip(leaves, teacher_hidden.split(chunk), strict=True):
        student_logits = student_head(leaf)
        with torch.no_grad():
            teacher_logits = teacher_head(teacher_part)
        index = student_topk(student_logits, settings.k)
        divergence = divergence_on(
            student_logits, teacher_logits, index, alpha=settings.alpha, support=settings.support
        )
        loss = divergence.sum() / max(1, denominator)
        loss.backward()
        losses.append(loss.detach())
        utilities.append(
            token_utility(
                student_logits,
                teacher_logits,
                index,
                use_overlap=settings.use_overlap,
                use_confidence=settings.use_confidence,
            )
        )
    student_hidden.backward(torch.cat([_gradient(leaf) for leaf in leaves]))
    return torch.stack(losses).sum(), torch.cat(utilities)


def _gradient(leaf: Tensor) -> Tensor:
    assert leaf.grad is not None
    return leaf.grad
