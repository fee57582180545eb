"""Running statistics that bring the features to one scale."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bas_opd.types import FEATURES


class RunningNormaliser:
    """Exponential mean and variance of phi over the candidates (Alg. 1, line 4; Table 5)."""

    EPS = 1e-6

    def __init__(self, momentum: float = 0.99, *, columns: int = len(FEATURES)) -> None:
        self.momentum = momentum
        self.mean = torch.zeros(columns, dtype=torch.float64, device="cpu")
        self.variance = torch.ones(columns, dtype=torch.float64, device="cpu")
        self.batches = 0

    @torch.no_grad()
    def update(self, values: Tensor) -> None:
        """Take in the candidates of one step; rows with a non-finite feature are left out."""
        finite = values[values.isfinite().all(1)]
        if len(finite) == 0:
            return
        mean, variance = finite.mean(0), finite.var(0, correction=0)
        # The first batch sets both: from 0 and 1, a response length of about 87 tokens would take
        # hundreds of steps to be centred.
        keep = self.momentum if self.batches else 0.0
        self.mean = keep * self.mean + (1 - keep) * mean
        self.variance = keep * self.variance + (1 - keep) * variance
        self.batches += 1

    def normalise(self, values: Tensor) -> Tensor:
        """(x - mean) / sqrt(variance + eps), leaving the statistics as they are."""
        return (values - self.mean) / (self.variance + self.EPS).sqrt()

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that must survive, as tensors."""
        return {
            "mean": self.mean.clone(),
            "variance": self.variance.clone(),
            "batches": torch.tensor(self.batches),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self.mean, self.variance = state["mean"].clone(), state["variance"].clone()
        self.batches = int(state["batches"])
