"""The selectors that are compared: those of the package as they are, and those on trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from bas_opd.select import RunningNormaliser, Selector
from bas_opd.select.draws import addressed_generator
from bas_opd.select.policies import explored_selection, finite_scores, uniform_selection
from bas_opd.select.replay import Labels, ReplayBuffer
from bas_opd.types import Features, Selection
from recipes.selector_study.columns import Columns
from recipes.selector_study.regressors import Regressor
from recipes.selector_study.scored import Candidates


class Entrant(Protocol):
    """Chooses at most `budget` candidates, then learns the utility of the chosen ones."""

    def select(self, candidates: Candidates, budget: int) -> Selection: ...

    def learn(self, candidates: Candidates, utility: Mapping[int, float]) -> None: ...


class Shipped:
    """A selector of the package, called as `bas_opd.algorithm.train_step` calls it."""

    def __init__(self, selector: Selector) -> None:
        self.selector = selector

    def select(self, candidates: Candidates, budget: int) -> Selection:
        return self.selector.select(candidates.features, budget, step=candidates.step)

    def learn(self, candidates: Candidates, utility: Mapping[int, float]) -> None:
        self.selector.learn(candidates.features, utility, step=candidates.step)


@dataclass(frozen=True, slots=True)
class Ranked:
    """Ranks by a given score [candidate] and learns nothing."""

    score: Callable[[Candidates], Tensor]

    def select(self, candidates: Candidates, budget: int) -> Selection:
        return _highest(candidates, budget, self.score(candidates))

    def learn(self, candidates: Candidates, utility: Mapping[int, float]) -> None: ...


def standardised(utility: Tensor, weight: Tensor) -> Tensor:
    """Zero mean and unit variance over the labels held, the recent ones counting more."""
    mean = (weight * utility).sum() / weight.sum()
    variance = (weight * (utility - mean).square()).sum() / weight.sum()
    return (utility - mean) / (variance + 1e-24).sqrt()


def scaled(utility: Tensor, weight: Tensor) -> Tensor:
    """Unit mean square, and zero stays zero: for predictions that are divided afterwards."""
    square = (weight * utility.square()).sum() / weight.sum()
    return utility / (square + 1e-24).sqrt()


def logarithms(utility: Tensor, weight: Tensor) -> Tensor:
    """Standardised logarithms, bent to a line where the utility is a hundredth of its mean."""
    floor = 0.01 * float((weight * utility).sum() / weight.sum()) + 1e-12
    return standardised((utility.clamp_min(0) + floor).log(), weight)


def square_roots(utility: Tensor, weight: Tensor) -> Tensor:
    """Standardised square roots: between the utility and its logarithm."""
    return standardised(utility.clamp_min(0).sqrt(), weight)


def normal_scores(utility: Tensor, weight: Tensor) -> Tensor:
    """The normal quantiles of the ranks among the labels held."""
    return normal_quantiles(utility[:, None])[:, 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a `Fitted` selector sees candidates, keeps labels, and explores."""

    columns: Columns
    target: Callable[[Tensor, Tensor], Tensor] = standardised
    scale: Literal["running", "ranks"] = "running"
    """Columns by running mean and variance, or by their rank among the candidates of the step."""
    exploration: float = 0.0
    """Share of the budget drawn at random, as in the paper."""
    bonus: float = 0.0
    """Standard deviations added to a prediction (an upper confidence bound)."""
    is_thompson: bool = False
    """Whether to rank by one draw of each prediction instead of by its mean."""
    is_total: bool = False
    """Whether to predict the sum over tokens and divide it by the length, which is known, to get
    the mean that the utility is. Needs the target `scaled`."""
    per_token: bool = False
    """Whether to rank by utility over response length, which is what a query costs. Likewise."""
    capacity: int = 2048
    half_life: float = 20.0
    start: int = 48
    """Labels before the first fit."""
    seed: int = 0


class Fitted:
    """Fits a regression to the labels held after every step, and ranks by its prediction."""

    LIMIT = 4.0
    """Normalised columns are clipped here: the square of an outlier would dominate a fit."""

    def __init__(self, regressor: Regressor, settings: Settings) -> None:
        self.regressor, self.settings = regressor, settings
        self.normaliser, self.replay = RunningNormaliser(), ReplayBuffer(settings.capacity)
        self.seen: Features | None = None
        """Raw columns of the candidates that `select` saw last. A running scale is applied at
        each use; ranks are of their own step."""
        self.is_fitted = False

    def select(self, candidates: Candidates, budget: int) -> Selection:
        settings = self.settings
        values = torch.stack(list(settings.columns(candidates).values()), 1)
        if settings.scale == "ranks":
            values = normal_quantiles(values)
        if self.seen is None:
            self._widen(values[:0])
        self.seen = Features(rows=candidates.features.rows, values=values)
        self.normaliser.update(values)
        if not self.is_fitted:
            return uniform_selection(self.seen, budget, seed=settings.seed, step=candidates.step)
        mean, deviation = self.regressor.predict(self._scaled(values))
        if settings.is_thompson:
            generator = addressed_generator("thompson", settings.seed, candidates.step)
            noise = torch.randn(len(mean), generator=generator, dtype=torch.float64)
            mean = mean + deviation * noise
        score = mean + settings.bonus * deviation
        score = score / candidates.lengths ** (settings.is_total + settings.per_token)
        return _highest(candidates, budget, score, settings.exploration, settings.seed)

    def learn(self, candidates: Candidates, utility: Mapping[int, float]) -> None:
        settings, rows = self.settings, candidates.features.rows
        if self.seen is None or not utility:
            return
        if settings.is_total:
            lengths = dict(zip(rows, candidates.lengths.tolist(), strict=True))
            utility = {row: worth * lengths[row] for row, worth in utility.items()}
        self.replay.observe(self.seen, utility, step=candidates.step)
        labels = self.replay.labels
        if len(labels) < settings.start:
            return
        weight = torch.exp2((labels.steps - candidates.step).double() / settings.half_life)
        target = settings.target(labels.utility, weight)
        self.regressor.fit(self._scaled(labels.features), target, weight)
        self.is_fitted = True

    def _widen(self, nothing: Tensor) -> None:
        """Give statistics and labels as many columns as there are; the package has six."""
        columns = nothing.shape[1]
        self.normaliser.mean = torch.zeros(columns, dtype=torch.float64)
        self.normaliser.variance = torch.ones(columns, dtype=torch.float64)
        empty = self.replay.labels
        self.replay.labels = Labels(features=nothing, utility=empty.utility, steps=empty.steps)

    def _scaled(self, values: Tensor) -> Tensor:
        if self.settings.scale == "running":
            values = self.normaliser.normalise(values)
        return values.clamp(-self.LIMIT, self.LIMIT)


def _highest(
    candidates: Candidates, budget: int, score: Tensor, exploration: float = 0.0, seed: int = 0
) -> Selection:
    features = candidates.features
    return explored_selection(
        features,
        budget,
        scores=finite_scores(features.rows, score.tolist()),
        exploration=exploration,
        seed=seed,
        step=candidates.step,
    )


def normal_quantiles(values: Tensor) -> Tensor:
    """Return the normal quantile of each entry's rank in its column; ties share one rank."""
    ordered, columns = values.sort(0).values.T.contiguous(), values.T.contiguous()
    below = torch.searchsorted(ordered, columns)
    up_to = torch.searchsorted(ordered, columns, right=True)
    share = (below + up_to).T.double() / (2 * len(values))  # in (0, 1): the middle of the tie
    return torch.special.ndtri(share)
