"""The selectors that are compared: those of the package as they are, and those on trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from bas_opd.budget import exploration_quota
from bas_opd.select import RunningNormaliser, Selector
from bas_opd.select.draws import addressed_generator, draw_rows
from bas_opd.select.policies import affordable, finite_scores, ranked, uniform_selection
from bas_opd.types import Selection
from recipes.selector_study.columns import Columns
from recipes.selector_study.regressors import Regressor
from recipes.selector_study.scored import Candidates


class Entrant(Protocol):
    """Chooses at most `budget` candidates, then learns what the chosen ones were worth."""

    def select(self, candidates: Candidates, budget: int) -> Selection: ...

    def learn(self, candidates: Candidates, utility: Mapping[int, float]) -> None: ...


class Shipped:
    """A selector of the package, driven as `bas_opd.algorithm.train_step` drives it."""

    def __init__(self, selector: Selector) -> None:
        self.selector = selector

    def select(self, candidates: Candidates, budget: int) -> Selection:
        return self.selector.select(candidates.features, budget, step=candidates.step)

    def learn(self, candidates: Candidates, utility: Mapping[int, float]) -> None:
        self.selector.learn(candidates.features, utility, step=candidates.step)


class ByColumn:
    """Rank by one column and learn nothing: how much there is in it alone."""

    def __init__(self, columns: Columns, name: str, *, sign: int = 1) -> None:
        self.columns, self.name, self.sign = columns, name, sign

    def select(self, candidates: Candidates, budget: int) -> Selection:
        rows = candidates.features.rows
        scores = finite_scores(rows, (self.sign * self.columns(candidates)[self.name]).tolist())
        chosen = ranked(rows, scores)[: affordable(candidates.features, budget)]
        return Selection(rows=tuple(sorted(chosen)), budget=budget, scores=scores)

    def learn(self, candidates: Candidates, utility: Mapping[int, float]) -> None: ...


def standardised(utility: Tensor, weight: Tensor) -> Tensor:
    """Zero mean and unit variance over the labels at hand, the recent ones counting more."""
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
    """The normal quantiles of the ranks among the labels at hand."""
    return _normal_quantiles(utility[:, None])[:, 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a `Fitted` selector looks at candidates, remembers labels, and explores."""

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
    the mean that the utility is. Wants the target `scaled`."""
    per_token: bool = False
    """Whether to rank by utility over response length, which is what a query costs. Likewise."""
    capacity: int = 2048
    half_life: float = 20.0
    start: int = 48
    """Labels before the first fit."""
    seed: int = 0


class Fitted:
    """Fit a regression to the labels paid for, after every step, and rank by what it predicts."""

    LIMIT = 4.0
    """Normalised columns are cut off here: the square of an outlier would rule a fit."""

    def __init__(self, regressor: Regressor, settings: Settings) -> None:
        self.regressor, self.settings = regressor, settings
        self.normaliser: Normaliser | None = None
        self.x = self.utility = self.steps = torch.empty(0, dtype=torch.float64)
        self.raw = self.x
        """Columns of the candidates that `select` saw last. A running scale is applied anew at each
        use; ranks are of their own step."""
        self.is_fitted = False

    def select(self, candidates: Candidates, budget: int) -> Selection:
        settings, features = self.settings, candidates.features
        self.raw = raw = self._raw(candidates)
        if settings.scale == "running":
            self.normaliser = self.normaliser or Normaliser(raw.shape[1])
            self.normaliser.update(raw)
        if not self.is_fitted:
            return uniform_selection(features, budget, seed=settings.seed, step=candidates.step)
        scores = finite_scores(features.rows, self._scores(candidates, raw).tolist())
        order = ranked(features.rows, scores)
        count = affordable(features, budget)
        explore = exploration_quota(settings.exploration, count)
        best, rest = order[: count - explore], order[count - explore :]
        generator = addressed_generator("explore", settings.seed, candidates.step)
        explored = draw_rows(rest, explore, generator)
        return Selection(
            rows=tuple(sorted(best + explored)),
            budget=budget,
            explored=frozenset(explored),
            scores=scores,
        )

    def learn(self, candidates: Candidates, utility: Mapping[int, float]) -> None:
        settings = self.settings
        places = [i for i, row in enumerate(candidates.features.rows) if row in utility]
        if not places:
            return
        labels = torch.tensor(
            [utility[candidates.features.rows[i]] for i in places], dtype=torch.float64
        )
        if settings.is_total:
            labels = labels * candidates.lengths[places]
        raw = self.raw[places]
        keep = slice(-settings.capacity, None)
        self.x = torch.cat([self.x.reshape(-1, raw.shape[1]), raw])[keep]
        self.utility = torch.cat([self.utility, labels])[keep]
        steps = torch.full((len(places),), candidates.step, dtype=raw.dtype)
        self.steps = torch.cat([self.steps, steps])[keep]
        if len(self.utility) < settings.start:
            return
        weight = torch.exp2((self.steps - candidates.step) / settings.half_life)
        target = settings.target(self.utility, weight)
        self.regressor.fit(self._scaled(self.x), target, weight)
        self.is_fitted = True

    def _scores(self, candidates: Candidates, raw: Tensor) -> Tensor:
        settings = self.settings
        mean, deviation = self.regressor.predict(self._scaled(raw))
        if settings.is_thompson:
            generator = addressed_generator("thompson", settings.seed, candidates.step)
            mean = mean + deviation * torch.randn(
                len(mean), generator=generator, dtype=torch.float64
            )
        score = mean + settings.bonus * deviation
        return score / candidates.lengths ** (settings.is_total + settings.per_token)

    def _raw(self, candidates: Candidates) -> Tensor:
        raw = torch.stack(list(self.settings.columns(candidates).values()), 1)
        return _normal_quantiles(raw) if self.settings.scale == "ranks" else raw

    def _scaled(self, raw: Tensor) -> Tensor:
        x = self.normaliser.normalise(raw) if self.normaliser else raw
        return x.clamp(-self.LIMIT, self.LIMIT)


class Normaliser(RunningNormaliser):
    """The package's running mean and variance, for any number of columns."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.mean = torch.zeros(columns, dtype=torch.float64)
        self.variance = torch.ones(columns, dtype=torch.float64)


def _normal_quantiles(values: Tensor) -> Tensor:
    """Normal quantile of every entry's rank in its column, equal entries sharing one rank."""
    ordered = values.sort(0).values.T.contiguous()
    below = torch.searchsorted(ordered, values.T.contiguous())
    up_to = torch.searchsorted(ordered, values.T.contiguous(), right=True)
    share = (below + up_to).T.double() / (2 * len(values))  # in (0, 1): the middle of the tie
    return torch.special.ndtri(share)
