"""The losses of GRPO and DAPO as pure functions, beside their equations (docs/methods.md).

`row` is one rollout, `token` a response position; rows of a group, the rollouts of one prompt, are
neighbours.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from bas_opd.rewards import Scale, advantages, overlong_penalties

Aggregate = Literal["token", "sequence"]
"""What a loss is the mean of: all tokens, or the token means of rows."""


def group_advantages(
    rewards: Tensor, group_size: int, *, scale: Scale = "std", epsilon: float = 1e-6
) -> Tensor:
    """Return A = (r - mean) / (std + epsilon) of every row, computed in float64.

    The standard deviation has n - 1; `none` leaves out the division. A is exactly 0 where all
    rewards of a group are equal.
    """
    found = advantages(rewards.double().tolist(), group_size, scale=scale, epsilon=epsilon)
    return torch.tensor(found, dtype=torch.float64, device=rewards.device)


def overlong_penalty(lengths: Tensor, *, limit: int, cache: int) -> Tensor:
    """Return DAPO's soft penalty for responses near the limit, `[row]`, 0 or negative."""
    found = overlong_penalties(lengths.tolist(), limit=limit, cache=cache)
    return torch.tensor(found, dtype=torch.float64, device=lengths.device)


def clipped_policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    epsilon_low: float,
    epsilon_high: float,
    dual_clip: float | None = None,
    aggregate: Aggregate = "token",
    importance: Tensor | None = None,
) -> Tensor:
    """Return the mean of -min(ratio A, clip(ratio, 1 - low, 1 + high) A) over valid tokens.

    Log-probs and mask are `[row, token]`, advantages `[row]`. `token` is the mean of all tokens,
    `sequence` that of the token means of rows; a row without tokens counts in neither. `importance`
    are weights `[row, token]` of another engine's tokens (`importance_weights`).
    """
    if not logprobs.shape == old_logprobs.shape == mask.shape:
        raise ValueError(
            f"logprobs have the shape {tuple(logprobs.shape)}, old_logprobs "
            f"{tuple(old_logprobs.shape)} and mask {tuple(mask.shape)}; give all as [row, token]."
        )
    if advantages.shape != logprobs.shape[:1]:
        raise ValueError(
            f"advantages have the shape {tuple(advantages.shape)}; give one for each of the "
            f"{len(logprobs)} rows."
        )
    valid = mask.bool()
    terms = clipped_terms(
        logprobs.where(valid, 0.0),  # padding may hold anything, also what is not finite
        old_logprobs.where(valid, 0.0),
        advantages[:, None],
        epsilon_low=epsilon_low,
        epsilon_high=epsilon_high,
        dual_clip=dual_clip,
    )
    if importance is not None:
        terms = terms * importance.where(valid, 0.0)
    weights = token_weights(valid.sum(1), aggregate)[:, None].to(terms.dtype)
    return (terms.where(valid, 0.0) * weights).sum()


def clipped_terms(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    epsilon_low: float,
    epsilon_high: float,
    dual_clip: float | None = None,
) -> Tensor:
    """Return -min(ratio A, clip(ratio) A) of every token.

    With `dual_clip` c, where A is negative it is at most -c A: a token that became much likelier
    since it was drawn cannot dominate the loss.
    """
    ratio = (logprobs - old_logprobs).exp()
    clipped = ratio.clamp(1 - epsilon_low, 1 + epsilon_high)
    terms = torch.maximum(-ratio * advantages, -clipped * advantages)
    if dual_clip is None:
        return terms
    return torch.where(advantages < 0, torch.minimum(terms, -dual_clip * advantages), terms)


def clipped_tokens(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    epsilon_low: float,
    epsilon_high: float,
    dual_clip: float | None = None,
) -> Tensor:
    """Return whether clipping takes the gradient of each token away, dual clip included."""
    ratio = (logprobs - old_logprobs).exp()
    too_likely = (advantages > 0) & (ratio > 1 + epsilon_high)
    too_unlikely = (advantages < 0) & (ratio < 1 - epsilon_low)
    if dual_clip is None:
        return too_likely | too_unlikely
    return too_likely | too_unlikely | ((advantages < 0) & (ratio > dual_clip))


def k3(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Return exp(d) - d - 1 with d = log p_ref - log p, an estimate of KL(p || p_ref).

    It is never negative. Its gradient by log p is 1 - exp(d).
    """
    apart = reference_logprobs - logprobs
    return apart.exp() - apart - 1


def token_weights(lengths: Tensor, aggregate: Aggregate) -> Tensor:
    """Return what each token of a row weighs in the mean, `[row]` float64, from all the lengths."""
    counts = lengths.double()
    if aggregate == "token":
        return torch.ones_like(counts) / counts.sum().clamp_min(1)
    if aggregate == "sequence":
        return 1 / (counts.clamp_min(1) * (counts > 0).sum().clamp_min(1))
    raise ValueError(f"aggregate must be 'token' or 'sequence', not {aggregate!r}.")
