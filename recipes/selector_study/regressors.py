"""Regressions small enough to be refitted at every step, with their uncertainty."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from bas_opd.select import selector_loss
from bas_opd.select.draws import addressed_generator
from bas_opd.types import FEATURES


class Regressor(Protocol):
    """Learns y [label] from x [label, column], each label with a weight between 0 and 1."""

    def fit(self, x: Tensor, y: Tensor, weight: Tensor) -> None: ...

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of the expectation [row]."""
        ...


def linear(x: Tensor) -> Tensor:
    return torch.cat([torch.ones_like(x[:, :1]), x], 1)


def squares(x: Tensor) -> Tensor:
    return torch.cat([linear(x), x.square()], 1)


def quadratic(x: Tensor) -> Tensor:
    """Also squares and pairwise products."""
    i, j = torch.triu_indices(x.shape[1], x.shape[1])
    return torch.cat([linear(x), x[:, i] * x[:, j]], 1)


class Ridge:
    """Bayesian linear regression on an expansion of the columns, with a Gaussian prior."""

    STRENGTH = 3.0
    """Precision of the prior on each coefficient, in labels of unit weight."""

    def __init__(self, expand: Callable[[Tensor], Tensor] = quadratic):
        self.expand = expand

    def fit(self, x: Tensor, y: Tensor, weight: Tensor) -> None:
        design = self.expand(x)
        prior = self.STRENGTH * torch.eye(design.shape[1], dtype=x.dtype)
        self.factor = torch.linalg.cholesky((design * weight[:, None]).T @ design + prior)
        moment = design.T @ (weight * y)
        self.coefficients = torch.cholesky_solve(moment[:, None], self.factor)[:, 0]
        residual = y - design @ self.coefficients
        self.noise = float((weight * residual.square()).sum() / weight.sum()) ** 0.5

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        design = self.expand(x)
        leverage = torch.linalg.solve_triangular(self.factor, design.T, upper=False)
        return design @ self.coefficients, self.noise * leverage.norm(dim=0)


class GaussianProcess:
    """Regression with a squared-exponential kernel; its cost grows with the cube of the labels."""

    NOISE = 0.5
    """Variance of a label of unit weight."""

    def fit(self, x: Tensor, y: Tensor, weight: Tensor) -> None:
        self.x = x
        variance = self.NOISE / weight
        self.factor = torch.linalg.cholesky(self._kernel(x, x) + variance.diag())
        self.coefficients = torch.cholesky_solve(y[:, None], self.factor)[:, 0]

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        cross = self._kernel(x, self.x)
        explained = torch.linalg.solve_triangular(self.factor, cross.T, upper=False)
        return cross @ self.coefficients, (1 - explained.square().sum(0)).clamp_min(0).sqrt()

    def _kernel(self, a: Tensor, b: Tensor) -> Tensor:
        # Over the square root of the width, so that one scale suits few and many columns.
        return torch.exp(-torch.cdist(a, b).square() / (2 * a.shape[1]))


class Stumps:
    """Gradient-boosted stumps on eight cuts of every column."""

    ROUNDS, RATE, STRENGTH = 60, 0.2, 8.0

    def fit(self, x: Tensor, y: Tensor, weight: Tensor) -> None:
        cuts = torch.quantile(x, torch.arange(1, 9, dtype=x.dtype) / 9, dim=0)  # [cut, column]
        above = (x[:, None] > cuts).double().flatten(1)  # [label, cut * column]
        mass = torch.stack([weight @ (1 - above), weight @ above])
        self.cuts, self.base = cuts, float((weight * y).sum() / weight.sum())
        self.steps = torch.zeros(2, above.shape[1], dtype=x.dtype)
        residual = y - self.base
        for _ in range(self.ROUNDS):
            pull = torch.stack([(weight * residual) @ (1 - above), (weight * residual) @ above])
            best = int((pull.square() / (mass + self.STRENGTH)).sum(0).argmax())
            step = self.RATE * pull[:, best] / (mass[:, best] + self.STRENGTH)
            self.steps[:, best] += step
            residual = residual - torch.where(above[:, best] > 0, step[1], step[0])

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        above = (x[:, None] > self.cuts).double().flatten(1)
        mean = self.base + above @ self.steps[1] + (1 - above) @ self.steps[0]
        return mean, torch.zeros_like(mean)


class Mean:
    """The mean of several regressions, whose errors differ."""

    def __init__(self, *members: Regressor):
        self.members = members

    def fit(self, x: Tensor, y: Tensor, weight: Tensor) -> None:
        for member in self.members:
            member.fit(x, y, weight)

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        means, deviations = zip(*(member.predict(x) for member in self.members), strict=True)
        return torch.stack(means).mean(0), torch.stack(deviations).mean(0)


class Network:
    """The paper's predictor and loss with more and larger updates, by default without LayerNorm.

    LayerNorm over the columns of a row removes differences in the size of all its features at once.
    """

    UPDATES, BATCH = 20, 256

    def __init__(self, *, layer_norm: bool = False):
        self.generator = addressed_generator("network", 0)
        columns = len(FEATURES)
        first = nn.Linear(columns, 32, dtype=torch.float64)
        last = nn.Linear(32, 1, dtype=torch.float64)
        for layer in (first, last):
            bound = 1 / math.sqrt(layer.in_features)
            for parameter in layer.parameters():
                nn.init.uniform_(parameter, -bound, bound, generator=self.generator)
        norm = nn.LayerNorm(columns, dtype=torch.float64) if layer_norm else nn.Identity()
        self.layers = nn.Sequential(norm, first, nn.SiLU(), last)
        self.optimizer = torch.optim.Adam(self.layers.parameters(), lr=1e-2, weight_decay=1e-4)

    def fit(self, x: Tensor, y: Tensor, weight: Tensor) -> None:
        age = -torch.log2(weight)
        for _ in range(self.UPDATES):
            drawn = torch.randperm(len(y), generator=self.generator)[: self.BATCH]
            loss = selector_loss(
                self.layers(x[drawn])[:, 0],
                y[drawn],
                age[drawn],
                half_life=1.0,
                rank_weight=0.2,
            )
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    @torch.no_grad()
    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.layers(x)[:, 0]
        return mean, torch.zeros_like(mean)
