"""f_psi: the small network that predicts what a query would be worth (Eq. 6)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bas_opd.select.draws import addressed_generator
from bas_opd.types import FEATURES


class UtilityPredictor(nn.Module):
    """LayerNorm(6) -> Linear(6, 32) -> SiLU -> Linear(32, 1), on the CPU (Eq. 6; Table 5).

    In float64, which costs nothing at this size and keeps autocast, and rounding, out of a ranking.
    """

    def __init__(self, *, seed: int = 0, hidden: int = 32) -> None:
        super().__init__()
        generator = addressed_generator("predictor", seed)
        self.norm = nn.LayerNorm(len(FEATURES), device="cpu", dtype=torch.float64)
        self.hidden = _linear(len(FEATURES), hidden, generator)
        self.out = _linear(hidden, 1, generator)

    def forward(self, normalised: Tensor) -> Tensor:
        """Predict the utility [row] of normalised features [row, feature]."""
        return self.out(nn.functional.silu(self.hidden(self.norm(normalised)))).squeeze(-1)


def _linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """Build a Linear with its usual initial distribution, drawn from `generator`."""
    # Born on the meta device, the layer draws nothing from the global generator: building a
    # selector must not shift the draws of the trainer around it.
    layer = nn.Linear(inputs, outputs, device="meta", dtype=torch.float64).to_empty(device="cpu")
    bound = 1 / math.sqrt(inputs)
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return layer
