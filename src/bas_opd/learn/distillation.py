"""L_BAS as an objective: the student against its teacher on the selected rows (Eq. 11)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from bas_opd.distill.divergence import divergence_on, student_topk
from bas_opd.distill.loss import DistillSettings
from bas_opd.distill.utility import token_utility
from bas_opd.learn.objective import ObjectivePart, PackedRows, backward_in_chunks
from bas_opd.types import TeacherScores


@dataclass(frozen=True, slots=True)
class Distillation:
    """D_alpha against the teacher as a token mean, and u of every row from the same logits."""

    teacher: TeacherScores
    head: Callable[[Tensor], Tensor]
    """The student's projection from hidden states to logits."""
    settings: DistillSettings

    def __call__(self, hidden: Tensor, packed: PackedRows) -> ObjectivePart:
        """Compare packed tokens with the teacher, a chunk of logits at a time."""
        settings = self.settings
        chunks = self.teacher.chunks(packed.rows, settings.tokens_per_chunk)

        def compare(states: Tensor) -> tuple[Tensor, Tensor]:
            logits, teacher = self.head(states), next(chunks)
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
            return divergence.sum() / max(1, self.teacher.scored_tokens), utility

        loss, utility = backward_in_chunks(hidden, settings.tokens_per_chunk, compare)
        return ObjectivePart(loss=loss, observed=packed.row_means(utility))
