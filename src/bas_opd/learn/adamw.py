"""torch's own AdamW on moments that are kept elsewhere than in its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim.adamw import adamw


def move(
    group: Mapping[str, Any],
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    firsts: Sequence[Tensor],
    seconds: Sequence[Tensor],
    steps: Sequence[Tensor],
) -> None:
    """Take a step with the options of a parameter group; moments and step counts are updated."""
    adamw(
        list(parameters),
        list(gradients),
        list(firsts),
        list(seconds),
        [],
        list(steps),
        foreach=group["foreach"],
        fused=group["fused"],
        amsgrad=False,
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
    )
