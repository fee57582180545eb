"""Every entrant by name: the selectors of the package as they are, and those on trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from bas_opd.select import (
    EntropySelector,
    LearnedSelector,
    RandomSelector,
    RegressedSelector,
    ReplayBuffer,
    RunningNormaliser,
)
from bas_opd.select.draws import addressed_generator
from bas_opd.select.policies import explored_selection, finite_scores, uniform_selection
from bas_opd.types import Selection
from recipes.selector_study.columns import (
    ALL_COLUMNS,
    Columns,
    joined,
    kind_columns,
    paper_columns,
    sibling_columns,
    token_columns,
    word_columns,
)
from recipes.selector_study.regressors import (
    GaussianProcess,
    Mean,
    Network,
    Regressor,
    Ridge,
    Stumps,
    squares,
)
from recipes.selector_study.scored import Candidates

PAPER = "learned"
"""The paper's selector with the paper's settings."""

CHOSEN = "ridge, cubes, roots, long memory"
"""The policy `regressed` of the package, which the study chose."""


class Entrant(Protocol):
    """What a replay asks of a selector. Those of the package are called as `train_step` does."""

    def select(self, candidates: Candidates, budget: int, *, step: int) -> Selection: ...

    def learn(self, candidates: Candidates, utility: Mapping[int, float], *, step: int) -> Any: ...


Factory = Callable[[], Entrant]
"""Builds a new entrant, so that no log teaches another."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """Ranks by a given score [candidate] and learns nothing."""

    score: Callable[[Candidates], Tensor]

    def select(self, candidates: Candidates, budget: int, *, step: int) -> Selection:
        scores = finite_scores(candidates.rows, self.score(candidates).tolist())
        return explored_selection(
            candidates, budget, scores=scores, exploration=0, seed=0, step=step
        )

    def learn(self, candidates: Candidates, utility: Mapping[int, float], *, step: int) -> None: ...


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


@dataclass(eq=False)
class Fitted:
    """Fits a regression to the labels held after every step, and ranks by its prediction."""

    make: Callable[[], Regressor]
    _: KW_ONLY
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

    LIMIT: ClassVar[float] = 4.0
    """Normalised columns are clipped here: the square of an outlier would dominate a fit."""

    def __post_init__(self) -> None:
        self.regressor = self.make()
        self.seen: Candidates | None = None
        """The candidates that `select` saw last, with raw columns as their values. A running scale
        is applied at each use; ranks are of their own step."""
        self.is_fitted = False

    def select(self, candidates: Candidates, budget: int, *, step: int) -> Selection:
        values = torch.stack(list(self.columns(candidates).values()), 1)
        if self.scale == "ranks":
            values = normal_quantiles(values)
        if self.seen is None:
            columns = values.shape[1]
            self.normaliser = RunningNormaliser(columns=columns)
            self.replay = ReplayBuffer(self.capacity, columns=columns)
        self.seen = replace(candidates, values=values)
        self.normaliser.update(values)
        if not self.is_fitted:
            return uniform_selection(candidates, budget, seed=self.seed, step=step)
        score, deviation = self.regressor.predict(self._scaled(values))
        if self.is_thompson:
            generator = addressed_generator("thompson", self.seed, step)
            noise = torch.randn(len(score), generator=generator, dtype=torch.float64)
            score = score + deviation * noise
        score = score + self.bonus * deviation
        score = score / candidates.length ** (self.is_total + self.per_token)
        return explored_selection(
            candidates,
            budget,
            scores=finite_scores(candidates.rows, score.tolist()),
            exploration=self.exploration,
            seed=self.seed,
            step=step,
        )

    def learn(self, candidates: Candidates, utility: Mapping[int, float], *, step: int) -> None:
        if self.seen is None or not utility:
            return
        if self.is_total:
            lengths = dict(zip(candidates.rows, candidates.length.tolist(), strict=True))
            utility = {row: worth * lengths[row] for row, worth in utility.items()}
        self.replay.observe(self.seen, utility, step=step)
        labels = self.replay.labels
        if len(labels) < self.start:
            return
        weight = torch.exp2((labels.steps - step).double() / self.half_life)
        target = self.target(labels.utility, weight)
        self.regressor.fit(self._scaled(labels.features), target, weight)
        self.is_fitted = True

    def _scaled(self, values: Tensor) -> Tensor:
        if self.scale == "running":
            values = self.normaliser.normalise(values)
        return values.clamp(-self.LIMIT, self.LIMIT)


def normal_quantiles(values: Tensor) -> Tensor:
    """Return the normal quantile of each entry's rank in its column; ties share one rank."""
    ordered, columns = values.sort(0).values.T.contiguous(), values.T.contiguous()
    below = torch.searchsorted(ordered, columns)
    up_to = torch.searchsorted(ordered, columns, right=True)
    share = (below + up_to).T.double() / (2 * len(values))  # in (0, 1): the middle of the tie
    return torch.special.ndtri(share)


def roster() -> dict[str, Factory]:
    """Return every entrant; the README says what each is."""
    six = partial(Fitted, columns=paper_columns)
    tokens = partial(Fitted, columns=joined(paper_columns, token_columns))
    siblings = partial(Fitted, columns=joined(paper_columns, sibling_columns))
    all_columns = joined(paper_columns, token_columns, sibling_columns)
    rich = partial(Fitted, columns=all_columns)
    kinds = partial(Fitted, columns=joined(all_columns, kind_columns))
    words = partial(Fitted, columns=joined(all_columns, word_columns))
    noisy = partial(six, exploration=0.1)
    roots = partial(six, target=square_roots, half_life=100.0, capacity=8192, start=96)
    process, rich_process = partial(six, capacity=768), partial(rich, capacity=768)
    often = {"updates_per_step": 20, "learning_rate": 1e-2}
    total, per_token = {"is_total": True, "target": scaled}, {"per_token": True, "target": scaled}
    return {
        "random": RandomSelector,
        "entropy": EntropySelector,
        PAPER: LearnedSelector,
        # The paper's class, other settings.
        "learned, no exploration": partial(LearnedSelector, exploration=0),
        "learned, rate 1e-2": partial(LearnedSelector, learning_rate=1e-2),
        "learned, 20 updates": partial(LearnedSelector, updates_per_step=20),
        "learned, 20 updates, rate 1e-2": partial(LearnedSelector, **often),
        "learned, 20 updates, all labels": partial(
            LearnedSelector, **often, replay_capacity=8192, half_life=40
        ),
        # The paper's network on other targets, six features.
        "network, layer norm": partial(noisy, partial(Network, layer_norm=True)),
        "network": partial(noisy, Network),
        "network, normal scores": partial(noisy, Network, target=normal_scores),
        "network, logarithms": partial(noisy, Network, target=logarithms),
        # Regressions in closed form, six features.
        "ridge, 10 % random": partial(noisy, Ridge),
        "ridge": partial(six, Ridge),
        "ridge, bonus": partial(six, Ridge, bonus=1.0),
        "ridge, thompson": partial(six, Ridge, is_thompson=True),
        "ridge, normal scores": partial(six, Ridge, target=normal_scores),
        "ridge, square roots": partial(six, Ridge, target=square_roots),
        "ridge, logarithms": partial(six, Ridge, target=logarithms),
        "ridge, ranked columns": partial(six, Ridge, scale="ranks"),
        "ridge, long memory": partial(six, Ridge, half_life=100.0, capacity=8192),
        "ridge, short memory": partial(six, Ridge, half_life=5.0),
        "ridge, roots, long memory": partial(roots, Ridge),
        "ridge, roots, long memory, bonus": partial(roots, Ridge, bonus=1.0),
        CHOSEN: RegressedSelector,
        "ridge, cubes, 10 % random": partial(RegressedSelector, exploration=0.1),
        "stumps": partial(six, Stumps),
        "process": partial(process, GaussianProcess),
        "process, bonus": partial(process, GaussianProcess, bonus=0.5),
        # More columns from the same rollouts.
        "ridge, token columns": partial(tokens, _wide),
        "ridge, sibling columns": partial(siblings, _wide),
        "ridge, all columns": partial(rich, _wide),
        "ridge, all columns, bonus": partial(rich, _wide, bonus=1.0),
        "ridge, all columns, square roots": partial(rich, _wide, target=square_roots),
        "ridge, all columns, ranked": partial(rich, _wide, scale="ranks"),
        "ridge, all columns and kind": partial(kinds, _wide),
        "ridge, all columns and words": partial(words, _wide),
        "stumps, all columns": partial(rich, Stumps),
        "process, all columns": partial(rich_process, GaussianProcess),
        "process, all columns, bonus": partial(rich_process, GaussianProcess, bonus=0.5),
        "mean of three, all columns": partial(
            rich_process, lambda: Mean(_wide(), Stumps(), GaussianProcess())
        ),
        # The sum over tokens, which is then divided by their number.
        "ridge, total": partial(six, Ridge, **total),
        "ridge, all columns, total": partial(rich, _wide, **total),
        "stumps, all columns, total": partial(rich, Stumps, **total),
        # What a query costs.
        "ridge, per token": partial(six, Ridge, **per_token),
        "ridge, all columns, per token": partial(rich, _wide, **per_token),
    }


def single_columns(example: Candidates) -> dict[str, Factory]:
    """Return an entrant for either end of every column that such candidates have."""

    def ranked(name: str, sign: int) -> Factory:
        return lambda: Ranked(lambda candidates: sign * ALL_COLUMNS(candidates)[name])

    ends = {"high": 1, "low": -1}
    names = ALL_COLUMNS(example)
    return {f"{end} {name}": ranked(name, sign) for name in names for end, sign in ends.items()}


def _wide() -> Ridge:
    """Without products of columns: thirty columns would make five hundred."""
    return Ridge(squares)
