"""Divergence, utility and gradient of a chunk whose logits are read as seldom as possible.

The same quantities as `divergence_on` and `token_utility`, for large vocabularies on a GPU:

- The top-k tokens are in the k blocks with the largest maxima. One pass over the logits gives the
  maximum and the log-sum-exp of every block; all else is done on k blocks.
- The tail is the log-sum-exp of the logits that are not in the top-k, computed from blocks. As
  1 minus the mass of the top-k, it would have no precision left on a peaked distribution.
- D depends on the logits of the top-k and on r, the log-sum-exp of the others. So its gradient at
  any other logit z is dD/dr * exp(z - r), and only k + 1 numbers a token have one of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bas_opd.distill.divergence import LOG_ZERO, jensen_shannon, mixture, renormalised
from bas_opd.distill.kernels import (
    BLOCK,
    block_summaries,
    can_fuse,
    fused_rest,
    fused_topk,
    scaled_softmax,
)
from bas_opd.distill.loss import DistillSettings
from bas_opd.distill.utility import ascending_overlap, teacher_confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A chunk of tokens compared with their teacher."""

    divergence: Tensor  # [token]
    utility: Tensor  # [token]
    index: Tensor  # [token, k] ids of the student's top-k
    at_index: Tensor  # [token, k] gradient of each token's divergence at these logits
    rest: Tensor | None  # [token] log-sum-exp of the other logits
    at_rest: Tensor | None  # [token] gradient at it

    def gradient(
        self, others: Tensor | None, scale: Tensor | float, dtype: torch.dtype
    ) -> Gradient:
        """Return scale * dD/dlogits; the scale is one for all tokens, or `[token]`.

        `others` are the student's logits as `compare` leaves them: -inf at the top-k. Without a
        tail they are not needed: the gradient is zero there.
        """
        each = scale[..., None] if isinstance(scale, Tensor) else scale
        at_index = (each * self.at_index).to(dtype)
        if self.rest is None or self.at_rest is None:
            return Gradient(values=at_index, ids=self.index)
        assert others is not None
        # Where all others are -inf there is nothing to scale: exp(-inf) is 0.
        finite = self.rest.where(self.rest.isfinite(), 0.0)
        values = scaled_softmax(others, finite, scale * self.at_rest, dtype)
        return Gradient(values=values.scatter_(-1, self.index, at_index))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """The gradient of logits: of all of them, or of those at k ids of each token."""

    values: Tensor  # [token, vocab] or [token, k]
    ids: Tensor | None = None  # [token, k]; None: the whole vocabulary


@torch.no_grad()
def compare(student: Tensor, teacher: Tensor, settings: DistillSettings) -> Compared:
    """Compare logits `[token, vocab]` in fp32. With a tail both become -inf at the top-k ids."""
    k = min(settings.k, student.shape[-1])
    has_tail = settings.support == "tail" and k < student.shape[-1]
    largest, summed = block_summaries(student)
    top, index = block_topk(student, largest, k)
    theirs = teacher.gather(-1, index)
    own = rest = their_rest = None
    if has_tail:
        rest = rest_of(student, summed, index)
    if settings.use_overlap or has_tail:
        largest, summed = block_summaries(teacher)
    if settings.use_overlap:
        _, own = block_topk(teacher, largest, k)
    if has_tail:
        their_rest = rest_of(teacher, summed, index)
    del largest, summed

    of_student, of_teacher = renormalised(top), renormalised(theirs)
    utility = jensen_shannon(of_student, of_teacher, alpha=0.5)
    if own is not None:
        utility = utility * ascending_overlap(own, index, dtype=utility.dtype)
    if settings.use_confidence:
        utility = utility * teacher_confidence(of_teacher)

    logits = top
    if rest is not None and their_rest is not None:
        logits = torch.cat([top, rest[:, None]], dim=-1)
        of_student = renormalised(logits)
        of_teacher = renormalised(torch.cat([theirs, their_rest[:, None]], dim=-1))
    gradient = _at_logprobs(of_student, of_teacher, settings.alpha)
    gradient -= of_student.exp() * gradient.sum(-1, keepdim=True)
    gradient.masked_fill_(logits < LOG_ZERO, 0.0)  # which `renormalised` raises to that
    return Compared(
        divergence=jensen_shannon(of_student, of_teacher, alpha=settings.alpha),
        utility=utility,
        index=index,
        at_index=gradient[:, :k],
        rest=rest,
        at_rest=None if rest is None else gradient[:, k],
    )


def block_topk(logits: Tensor, largest: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return values and ids of the top-k, in ascending order of ids.

    `largest` are the largest logits of each block.
    """
    if can_fuse(logits, k):
        return fused_topk(logits, largest, k)
    if largest.shape[-1] <= k:
        index = logits.topk(k, dim=-1, sorted=False).indices
    else:
        columns = _columns(largest.topk(k, dim=-1, sorted=False).indices)
        index = columns.gather(-1, _at(logits, columns).topk(k, dim=-1, sorted=False).indices)
    index = index.sort(dim=-1).values
    return logits.gather(-1, index), index


def rest_of(logits: Tensor, summed: Tensor, index: Tensor) -> Tensor:
    """Return the log-sum-exp of the logits that are not at the given ids, which become -inf.

    Ids ascend. The log-sum-exps of blocks are those before.
    """
    logits.scatter_(-1, index, float("-inf"))
    if can_fuse(logits, index.shape[-1]):
        return fused_rest(logits, summed, index)
    touched = index // BLOCK
    again = torch.zeros_like(touched, dtype=torch.bool)
    again[:, 1:] = touched[:, 1:] == touched[:, :-1]
    untouched = summed.scatter(-1, touched, float("-inf")).logsumexp(-1)
    inside = _at(logits, _columns(touched)).unflatten(-1, (-1, BLOCK))
    inside = inside.masked_fill(again[..., None], float("-inf")).flatten(-2).logsumexp(-1)
    return torch.logaddexp(untouched, inside)


def _columns(blocks: Tensor) -> Tensor:
    """Return the ids in blocks `[token, k]`, as `[token, k * BLOCK]`."""
    return (blocks[..., None] * BLOCK + torch.arange(BLOCK, device=blocks.device)).flatten(-2)


def _at(logits: Tensor, columns: Tensor) -> Tensor:
    """Return the logits at ids, -inf beyond the vocabulary."""
    last = logits.shape[-1] - 1
    return logits.gather(-1, columns.clamp_max(last)).masked_fill_(columns > last, float("-inf"))


def _at_logprobs(student: Tensor, teacher: Tensor, alpha: float) -> Tensor:
    """Return g, with which dD/dz = g - S sum(g) at logits z of which S are the probabilities.

    It is the gradient of D_alpha at log S, less what is a multiple of S and falls out.
    """
    if alpha == 0.0:
        return -teacher.exp()
    if alpha == 1.0:
        return student.exp() * (student - teacher)
    return (1.0 - alpha) * student.exp() * (student - mixture(student, teacher, alpha))
