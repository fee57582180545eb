"""Importance weights: tokens that an engine drew, weighed by how likely the trainer finds them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bas_opd.learn.likelihood import TokenLogprobs
from bas_opd.types import ImportanceReport


def importance_weights(logprobs: Tensor, sampled_logprobs: Tensor, *, cap: float = 2.0) -> Tensor:
    """Return min(p / q, cap) of every token, detached.

    p is the trainer's probability before the first update of the step, q that under which the
    engine drew the token. Below the cap the mean over q of w f is the mean over p of f; the cap
    bounds the variance and leaves a bias where p is much larger than q.
    """
    if not cap > 0:
        raise ValueError(f"cap must be above 0, not {cap}.")
    return truncated_ratios(logprobs - sampled_logprobs, cap)


def truncated_ratios(apart: Tensor, cap: float) -> Tensor:
    """Return min(p / q, cap) from log p - log q, detached."""
    return apart.detach().exp().clamp_max(cap)


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Importance weights from logits: the trainer's log-probs as an engine draws, and a cap."""

    logprobs: TokenLogprobs
    """With the temperature of the engine, and the ids that it never draws."""
    cap: float

    @torch.no_grad()
    def apart(self, logits: Tensor, tokens: Tensor, sampled: Tensor) -> Tensor:
        """Return log p - log q of packed tokens `[token]`."""
        return self.logprobs(logits, tokens) - sampled.to(logits.device)


def importance_report(apart: Tensor, cap: float) -> ImportanceReport:
    """Return what the weights of tokens were, from log p - log q `[token]`."""
    return ImportanceReport(
        tokens=len(apart),
        total_difference=float(apart.abs().double().sum()),
        max_difference=float(apart.abs().max()) if len(apart) else 0.0,
        truncated=int((apart.exp() > cap).sum()),
    )
