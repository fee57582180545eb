"""The regressed policy: the same features and labels as the learned one, fitted in closed form.

Not of the paper. `docs/selector-study.md` has the evidence and its limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

import torch
from torch import Tensor

from bas_opd.budget import exploration_quota
from bas_opd.errors import ConfigError
from bas_opd.select.normaliser import RunningNormaliser
from bas_opd.select.policies import explored_selection, finite_scores, uniform_selection
from bas_opd.select.replay import Labels, ReplayBuffer
from bas_opd.types import FEATURES, Features, Selection


class RegressedSelector:
    """Query the rows of highest predicted utility, by ridge regression on all labels held.

    After every step that brings a label, the square root of the utility is regressed on the
    normalised features, their squares, products and cubes; older labels weigh less. Until the first
    fit, rows are drawn as `RandomSelector` draws them with the same seed.
    """

    LIMIT = 4.0
    """Normalised features are cut off here: the cube of an outlier would rule the fit."""
    STRENGTH = 3.0
    """Precision of the Gaussian prior on each coefficient, in labels of unit weight."""

    def __init__(
        self,
        *,
        seed: int = 0,
        exploration: float | str | Decimal = 0,
        momentum: float = 0.99,
        replay_capacity: int = 8192,
        replay_start: int = 96,
        half_life: float = 100,
    ) -> None:
        exploration_quota(exploration, 0)  # a bad ratio fails here, not after the warm-up
        if not 1 <= replay_start <= replay_capacity:
            raise ConfigError(
                f"The selector would never learn: it starts at {replay_start} labels and keeps "
                f"{replay_capacity}. Set replay_start to at least 1 and at most replay_capacity."
            )
        self.seed = seed
        self.exploration = exploration
        self.replay_start = replay_start
        self.half_life = half_life
        self.is_trained = False
        """Whether there has been a fit, by which rows are therefore ranked."""
        self.coefficients = torch.zeros(
            _terms(torch.zeros(1, len(FEATURES))).shape[1], dtype=torch.float64, device="cpu"
        )
        self.normaliser = RunningNormaliser(momentum)
        self.replay = ReplayBuffer(replay_capacity)

    def select(self, features: Features, budget: int, *, step: int) -> Selection:
        """Update the normaliser on C and choose K rows of it."""
        self.normaliser.update(features.values)
        if not self.is_trained:
            return uniform_selection(features, budget, seed=self.seed, step=step)
        return explored_selection(
            features,
            budget,
            scores=finite_scores(features.rows, self.predict(features.values).tolist()),
            exploration=self.exploration,
            seed=self.seed,
            step=step,
        )

    @torch.no_grad()
    def predict(self, values: Tensor) -> Tensor:
        """Predicted square root of the utility [row]; NaN for a row with a non-finite feature."""
        predicted = self._design(values) @ self.coefficients
        return predicted.where(values.isfinite().all(1), torch.nan)

    def learn(self, features: Features, utility: Mapping[int, float], *, step: int) -> bool:
        """Store the labels and fit all that are held anew; True if that happened."""
        stored = self.replay.observe(features, utility, step=step)
        if stored == 0 or len(self.replay) < self.replay_start:
            return False
        self.coefficients = self._fit(self.replay.labels, step)
        self.is_trained = True
        return True

    @torch.no_grad()
    def _fit(self, labels: Labels, step: int) -> Tensor:
        """Weighted ridge regression of the standardised square roots, in their own units."""
        weight = torch.exp2((labels.steps - step) / self.half_life)
        root = labels.utility.clamp_min(0).sqrt()
        mean = (weight * root).sum() / weight.sum()
        variance = (weight * (root - mean).square()).sum() / weight.sum()
        deviation = (variance + 1e-24).sqrt()
        design = self._design(labels.features)
        prior = self.STRENGTH * torch.eye(design.shape[1], dtype=design.dtype, device="cpu")
        factor = torch.linalg.cholesky((design * weight[:, None]).T @ design + prior)
        moment = design.T @ (weight * (root - mean) / deviation)
        coefficients = deviation * torch.cholesky_solve(moment[:, None], factor)[:, 0]
        coefficients[0] += mean
        return coefficients

    def _design(self, values: Tensor) -> Tensor:
        return _terms(self.normaliser.normalise(values).clamp(-self.LIMIT, self.LIMIT))

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that must survive, as one flat table of tensors."""
        parts = {"normaliser": self.normaliser.state_dict(), "replay": self.replay.state_dict()}
        return {
            "is_trained": torch.tensor(self.is_trained),
            "coefficients": self.coefficients.clone(),
        } | {
            f"{part}.{name}": value
            for part, table in parts.items()
            for name, value in table.items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue exactly where `state_dict` was taken, with the same settings."""
        self.is_trained = bool(state["is_trained"])
        self.coefficients = state["coefficients"].clone()
        for part, holder in (("normaliser.", self.normaliser), ("replay.", self.replay)):
            holder.load_state_dict(
                {key.removeprefix(part): v for key, v in state.items() if key.startswith(part)}
            )


def _terms(x: Tensor) -> Tensor:
    """One, the columns, their squares and products, and their cubes [row, term]."""
    i, j = torch.triu_indices(x.shape[1], x.shape[1], device="cpu")
    return torch.cat([torch.ones_like(x[:, :1]), x, x[:, i] * x[:, j], x.pow(3)], 1)
