"""The regressed policy, and the covering one that chooses by its predictions.

Both have the same features and labels as the learned policy, fitted in closed form.

Not of the paper. `docs/selector-study.md` has the evidence and its limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import torch
from torch import Tensor

from bas_opd.select.choice import grade_scores
from bas_opd.select.learning import LearningSelector
from bas_opd.select.replay import Labels
from bas_opd.types import FEATURES, Candidates

_TOKENS = FEATURES.index("response_tokens")


class RegressedSelector(LearningSelector):
    """Query the rows of highest predicted utility, by ridge regression on all labels held.

    After every step that brings a label, the square root of the utility is regressed on the
    normalised features, their squares, products and cubes; older labels weigh less.
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
        coverage: bool = False,
        columns: int = len(FEATURES),
    ) -> None:
        super().__init__(
            seed=seed,
            exploration=exploration,
            momentum=momentum,
            replay_capacity=replay_capacity,
            replay_start=replay_start,
            half_life=half_life,
            coverage=coverage,
            columns=columns,
        )
        self.coefficients = torch.zeros(
            _terms(torch.zeros(1, columns)).shape[1], dtype=torch.float64, device="cpu"
        )

    @torch.no_grad()
    def predict(self, values: Tensor) -> Tensor:
        """Predicted square root of the utility [row]; NaN for a row with a non-finite feature."""
        predicted = self._design(values) @ self.coefficients
        return predicted.where(values.isfinite().all(1), torch.nan)

    def _update(self, step: int) -> None:
        self.coefficients = self._fit(self.replay.labels, step)

    def _in_utility(self, predicted: Tensor) -> Tensor:
        # The square root is predicted. Keeping the sign keeps the order.
        return predicted * predicted.abs()

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

    def _learned(self) -> dict[str, Mapping[str, Tensor]]:
        return {"": {"coefficients": self.coefficients}}

    def _load_learned(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        self.coefficients = parts[""]["coefficients"].clone()


class CoveringSelector(RegressedSelector):
    """Cover the prompts of a step with different responses, those that add most to the loss first.

    The prediction is that of `RegressedSelector`, the choice that of `cover`. The score of a row is
    its predicted utility times its tokens: utility is a mean over tokens (Eq. 9), but the loss is a
    sum over them (Eq. 11), and by the mean the shortest responses would come first. Before the
    first fit all rows gain the same, and a random order decides between them. With `correctness`,
    a seventh feature says whether a row is right, and before the first fit wrong rows come first.
    """

    def __init__(self, *, seed: int = 0, correctness: bool = False, **settings: Any) -> None:
        columns = len(FEATURES) + correctness
        super().__init__(seed=seed, **{**settings, "coverage": True, "columns": columns})
        self.correctness = correctness

    @torch.no_grad()
    def rank_by(self, values: Tensor) -> Tensor:
        """Return the predicted utility of all tokens of a row together."""
        return self.predict(values).clamp_min(0).square() * values[:, _TOKENS]

    def _seen(self, candidates: Candidates) -> Candidates:
        if not self.correctness:
            return candidates
        scores = self._prior(candidates)
        column = torch.tensor([scores[row] for row in candidates.rows], dtype=torch.float64)
        return replace(candidates, values=torch.cat([candidates.values, column[:, None]], 1))

    def _prior(self, candidates: Candidates) -> dict[int, float]:
        return grade_scores(candidates.rows, candidates.grades) if self.correctness else {}


def _terms(x: Tensor) -> Tensor:
    """One, the columns, their squares and products, and their cubes [row, term]."""
    i, j = torch.triu_indices(x.shape[1], x.shape[1], device="cpu")
    return torch.cat([torch.ones_like(x[:, :1]), x, x[:, i] * x[:, j], x.pow(3)], 1)
