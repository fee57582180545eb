"""L_BAS as an objective: the student against its teacher on the selected rows (Eq. 11)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

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
        settings = self.settings
        chunks = self.teacher.chunks(packed.rows, settings.tokens_per_chunk)
        first = next(chunks)
        chunks = chain([first], chunks)
        if self.fast_head is not None and isinstance(first, FullLogits):
            loss, utility = self._explicitly(self.fast_head, hidden, chunks)
        else:
            loss, utility = backward_in_chunks(
                hidden,
                settings.tokens_per_chunk,
                lambda states: self._compare(states, next(chunks)),
            )
        return ObjectivePart(loss=loss, observed=packed.row_means(utility))

    def _compare(self, states: Tensor, teacher: TokenScores) -> tuple[Tensor, Tensor]:
        settings = self.settings
        logits = self.head(states)
        index = student_topk(logits, settings.k)
        divergence = divergence_on(
            logits, teacher, index, alpha=settings.alpha, support=settings.support
        )
        utility = token_utility(
            logits,
            teacher,
            index,
            use_overlap=settings.use_overlap,
            use_confidence=settings.use_confidence,
        )
        return divergence.sum() / self._tokens, utility

    def _explicitly(
        self, head: Head, hidden: Tensor, chunks: Iterator[TokenScores]
    ) -> tuple[Tensor, Tensor]:
        """Do the same as `backward_in_chunks`, with the gradient of the logits in closed form."""
        losses, values, gradients = [], [], []
        with torch.no_grad():
            for states in hidden.detach().split(self.settings.tokens_per_chunk):
                logits, teacher = head.logits(states), next(chunks)
                assert isinstance(teacher, FullLogits)
                found = compare(logits, teacher.logits, self.settings)
                losses.append(found.divergence.sum() / self._tokens)
                values.append(found.utility)
                if hidden.requires_grad:
                    gradient = found.gradient(logits, 1.0 / self._tokens, head.rounded().dtype)
                    gradients.append(head.backward(states, gradient.values, gradient.ids))
        if hidden.requires_grad:
            hidden.backward(torch.cat(gradients))
        return torch.stack(losses).sum(), torch.cat(values)

    @property
    def _tokens(self) -> int:
        """Of the whole step: the denominator of the mean."""
        return max(1, self.teacher.scored_tokens)
