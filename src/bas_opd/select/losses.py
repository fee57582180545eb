"""L_sel: what the predictor learns from the labels it has seen (Eqs. 10 and 12)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bas_opd.errors import ConfigError


def selector_loss(
    predicted: Tensor,
    utility: Tensor,
    age: Tensor,
    *,
    half_life: float,
    rank_weight: float,
    min_gap: float = 1e-6,
) -> Tensor:
    """L_sel = L_reg + rank_weight * L_rank over labels [row] of an age in steps (Eq. 10).

    L_reg is the Huber loss (delta 1), weighted by recency w = 2^(-age / half_life) (Eq. 12). L_rank
    is softplus(-sgn(u_i - u_j)(v_i - v_j)) over the pairs with |u_i - u_j| > min_gap (Table 5),
    weighted by sqrt(w_i w_j); without such a pair it is 0. Each is divided by the sum of its
    weights. Gradients reach `predicted` only; no labels at all give 0.
    """
    if predicted.dim() != 1 or not predicted.shape == utility.shape == age.shape:
        raise ValueError(
            "predicted, utility and age must each be [row]; "
            f"they are {list(predicted.shape)}, {list(utility.shape)} and {list(age.shape)}."
        )
    if not half_life > 0:
        raise ConfigError(f"The half-life of a label is {half_life} steps, but must be above 0.")
    if len(predicted) == 0:
        return predicted.sum()
    utility, age = utility.detach(), age.detach().to(predicted.dtype)

    # Counted from the youngest label: the common factor cancels in both means, and no batch is
    # old enough to have all its weights underflow.
    root_weight = torch.exp2((age.min() - age) / (2 * half_life))
    weight = root_weight.square()
    huber = F.huber_loss(predicted, utility.to(predicted.dtype), reduction="none", delta=1.0)
    regression = (weight * huber).sum() / weight.sum()

    # The full matrix holds every pair twice with the same term, which the mean does not see.
    gap = utility[:, None] - utility
    pair_weight = root_weight[:, None] * root_weight * (gap.abs() > min_gap)
    margin = gap.sign().to(predicted.dtype) * (predicted[:, None] - predicted)
    share = pair_weight / pair_weight.sum().clamp_min(torch.finfo(predicted.dtype).tiny)
    ranking = -(share * F.logsigmoid(margin)).sum()  # softplus(-x) = -logsigmoid(x)
    return regression + rank_weight * ranking
