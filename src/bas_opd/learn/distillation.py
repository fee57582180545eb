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
from bas_opd.learn.importance import Correction, importance_report, truncated_ratios
from bas_opd.learn.objective import ObjectivePart, PackedRows, backward_in_chunks
from bas_opd.model.head import Head
from bas_opd.types import FullLogits, ImportanceReport, TeacherScores, TokenScores


@dataclass(frozen=True, slots=True)
class Distillation:
    """D_alpha against the teacher as a token mean, and u of every row from the same logits."""

    teacher: TeacherScores
    head: Callable[[Tensor], Tensor]
    """The student's projection from hidden states to logits."""
    settings: DistillSettings
    fast_head: Head | None = None
    """The same in half precision. With it, gradients are computed without autograd."""
    correction: Correction | None = None
    """Weighs the divergence of each token, where another engine drew it; None: all weigh 1."""

    def __call__(self, hidden: Tensor, packed: PackedRows) -> ObjectivePart:
        """Compare packed tokens with the teacher, a chunk of logits at a time."""
        size = self.settings.tokens_per_chunk
        chunks = self.teacher.chunks(packed.rows, size)
        weigher = None if self.correction is None else _Weigher(self.correction, packed, size)
        loss, utility = backward_in_chunks(
            hidden, size, lambda states: self._compare(states, next(chunks), weigher)
        )
        return ObjectivePart(
            loss=loss,
            observed=packed.row_means(utility),
            importance=None if weigher is None else weigher.report(),
        )

    def _compare(
        self, states: Tensor, teacher: TokenScores, weigh: _Weigher | None
    ) -> tuple[Tensor, Tensor]:
        settings, tokens = self.settings, max(1, self.teacher.scored_tokens)
        if self.fast_head is not None and isinstance(teacher, FullLogits):
            head, theirs = self.fast_head, teacher.logits
            total, utility = _Explicit.apply(states, head, theirs, settings, weigh)
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
        if weigh is not None:
            divergence = divergence * weigh(logits)
        return divergence.sum() / tokens, utility


class _Weigher:
    """The importance weights of packed tokens, chunk after chunk."""

    def __init__(self, correction: Correction, packed: PackedRows, size: int) -> None:
        self._correction = correction
        self._chunks = zip(packed.tokens.split(size), packed.sampled.split(size), strict=True)
        self._apart: list[Tensor] = []

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the weights of the next chunk `[token]`, from its logits."""
        apart = self._correction.apart(logits, *next(self._chunks))
        self._apart.append(apart)
        return truncated_ratios(apart, self._correction.cap)

    def report(self) -> ImportanceReport:
        """Return what the weights were."""
        return importance_report(torch.cat(self._apart), self._correction.cap)


class _Explicit(torch.autograd.Function):
    """The sum of the divergences and the utility of a chunk, with gradients in closed form."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        head: Head,
        teacher: Tensor,
        settings: DistillSettings,
        weigh: Callable[[Tensor], Tensor] | None,
    ) -> tuple[Tensor, Tensor]:
        logits = head.logits(states)
        weights = None if weigh is None else weigh(logits)  # `compare` overwrites the logits.
        found = compare(logits, teacher, settings)
        ctx.save_for_backward(states, None if found.rest is None else logits)
        ctx.head, ctx.found, ctx.weights = head, found, weights
        ctx.mark_non_differentiable(found.utility)
        divergence = found.divergence if weights is None else found.divergence * weights
        return divergence.sum(), found.utility

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        states, logits = ctx.saved_tensors
        scale = gradients[0] if ctx.weights is None else gradients[0] * ctx.weights
        gradient = ctx.found.gradient(logits, scale, ctx.head.rounded().dtype)
        return ctx.head.backward(states, gradient.values, gradient.ids), None, None, None, None
