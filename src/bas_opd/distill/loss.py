"""L_BAS over selected valid tokens (Eq. 11), and how its tokens are compared."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bas_opd.distill.divergence import Support


def distillation_loss(divergence: Tensor, mask: Tensor) -> Tensor:
    """Return the masked token mean, its denominator clamped to at least one (Eq. 11)."""
    valid = mask.bool()
    return divergence.where(valid, 0.0).sum() / valid.sum().clamp_min(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillSettings:
    """How a token is compared with its teacher."""

    alpha: float = 0.5
    k: int = 100
    support: Support = "tail"
    use_overlap: bool = True
    use_confidence: bool = True
    tokens_per_chunk: int = 512
