"""L_BAS as an objective: the student against its teacher on the selected rows (Eq. 11)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bas_opd.distill.divergence import divergence_on, student_topk
from bas_opd.distill.explicit import compare
from bas_opd.distill.loss import DistillSettings
from bas_opd.distill.utility import token_utility
from bas_opd.learn.objective import ObjectivePart, PackedRows, backward_in_chunks
from bas_opd.model.head import Head
from bas_opd.types import FullLogits, TeacherScores, TokenScores


@dataclass(frozen=True, slots=True)
class Distillation:
    """D_alpha against the teacher as a token mean, and u of every row from the same logits."""

    teacher: TeacherScores
    head: Callable[[Tensor], Tensor]
    """The student's projection from hidden states to logits."""
    settings: DistillSettings
    fast_head: Head | None = None
    """The same in half precision. With it, gradients are computed without autograd."""

    def __call__(self, hidden: Tensor, packed: PackedRows) -> ObjectivePart:
        """Compare packed tokens with the teacher, a chunk of logits at a time."""
        size = self.settings.tokens_per_chunk
        chunks = self.teacher.chunks(packed.rows, size)
        loss, utility = backward_in_chunks(
            hidden, size, lambda states: self._compare(states, next(chunks))
        )
        return ObjectivePart(loss=loss, observed=packed.row_means(utility))

    def _compare(self, states: Tensor, teacher: TokenScores) -> tuple[Tensor, Tensor]:
        settings, tokens = self.settings, max(1, self.teacher.scored_tokens)
        if self.fast_head is not None and isinstance(teacher, FullLogits):
            total, utility = _Explicit.apply(states, self.fast_head, teacher.logits, settings)
            return total / tokens, utility
        logits = self.head(states)
        index, support = student_topk(logits, settings.k), teacher.support()
        divergence = divergence_on(
            logits,
            teacher,
            index if support is None else support,
            alpha=settings.alpha,
            support=settings.support,
        )
        utility = token_utility(
            logits,
            teacher,
            index,
            use_overlap=settings.use_overlap,
            use_confidence=settings.use_confidence,
            support=support,
        )
        return divergence.sum() / tokens, utility


class _Explicit(torch.autograd.Function):
    """The sum of the divergences and the utility of a chunk, with gradients in closed form."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, head: Head, teacher: Tensor, settings: DistillSettings
    ) -> tuple[Tensor, Tensor]:
        logits = head.logits(states)
        found = compare(logits, teacher, settings)
        ctx.save_for_backward(states, logits)
        ctx.head, ctx.found = head, found
        ctx.mark_non_differentiable(found.utility)
        return found.divergence.sum(), found.utility

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        states, logits = ctx.saved_tensors
        gradient = ctx.found.gradient(logits, gradients[0], ctx.head.rounded().dtype)
        return ctx.head.backward(states, gradient.values, gradient.ids), None, None, None
