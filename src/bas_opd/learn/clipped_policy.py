"""The clipped policy gradient as an objective: GRPO and DAPO on the rows of one mini-batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bas_opd.learn.importance import importance_report, truncated_ratios
from bas_opd.learn.likelihood import TokenLogprobs
from bas_opd.learn.objective import ObjectivePart, PackedRows, backward_in_chunks
from bas_opd.learn.policy_loss import Aggregate, clipped_terms, clipped_tokens, k3


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipSettings:
    """How far a token may move in one step, and what the loss is the mean of."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    beta: float = 0.0
    """Weight of k3 against the reference."""
    aggregate: Aggregate = "token"
    importance_cap: float | None = None
    """Largest importance weight of a token; None: no token has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedPolicy:
    """f = -min(ratio A, clip(ratio) A) + beta k3 of every token, times its weight in the mean.

    With `importance_cap` the first term also has the importance weight of its token.
    It observes the mean distance of a row's log-probs from those of the sampler.
    """

    head: Callable[[Tensor], Tensor]
    logprobs: TokenLogprobs
    settings: ClipSettings
    advantages: Mapping[int, float]
    weights: Mapping[int, float]
    """Row -> what each of its tokens weighs; of the whole mini-batch, never of a micro-batch."""
    old: Mapping[int, Tensor] | None = None
    """Row -> log-probs before the first update; None: this is the first, and the ratio is 1."""
    reference: Mapping[int, Tensor] | None = None
    measured: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Row -> the sum of k3 and the number of clipped tokens; filled by the calls."""
    chunk: int = 512

    def __call__(self, hidden: Tensor, packed: PackedRows) -> ObjectivePart:
        """Add up the terms of packed tokens."""
        device, settings = hidden.device, self.settings

        def spread(values: Mapping[int, float]) -> Tensor:
            each = torch.tensor([values[row] for row in packed.rows], dtype=torch.float32)
            return each.repeat_interleave(torch.tensor(packed.lengths)).to(device)

        def joined(values: Mapping[int, Tensor] | None) -> Tensor:
            if values is None:  # not used
                return torch.zeros(len(packed.tokens), device=device)
            return torch.cat([values[row].to(device) for row in packed.rows])

        columns = (
            packed.tokens.to(device),
            spread(self.advantages),
            spread(self.weights),
            packed.sampled.to(device),
            joined(self.old),
            joined(self.reference),
        )
        chunks = zip(*(column.split(self.chunk) for column in columns), strict=True)

        def compute(states: Tensor) -> tuple[Tensor, Tensor]:
            tokens, advantages, weights, sampled, old, reference = next(chunks)
            logprobs = self.logprobs(self.head(states), tokens)
            now = logprobs.detach()
            before = now if self.old is None else old
            clips = {
                "epsilon_low": settings.clip_low,
                "epsilon_high": settings.clip_high,
                "dual_clip": settings.dual_clip,
            }
            terms = clipped_terms(logprobs, before, advantages, **clips)
            clipped = clipped_tokens(now, before, advantages, **clips).float()
            if settings.importance_cap is not None:
                terms = terms * truncated_ratios(before - sampled, settings.importance_cap)
            apart = torch.zeros_like(now)
            if settings.beta:
                penalty = k3(logprobs, reference)
                terms, apart = terms + settings.beta * penalty, penalty.detach()
            values = (apart, clipped, (now - sampled).abs(), before - sampled)
            return (terms * weights).sum(), torch.stack(values, 1)

        loss, values = backward_in_chunks(hidden, self.chunk, compute)
        sums = torch.stack([part.sum(0) for part in values[:, :2].split(packed.lengths)])
        for row, (apart, clipped) in zip(packed.rows, sums.tolist(), strict=True):
            self.measured[row] = (apart, clipped)
        cap = settings.importance_cap
        return ObjectivePart(
            loss=loss,
            observed=packed.row_means(values[:, 2].contiguous()),
            importance=None if cap is None else importance_report(values[:, 3], cap),
        )
