"""Who enters, by name. Each value makes a fresh entrant, so that no log teaches another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bas_opd.select import EntropySelector, LearnedSelector, RandomSelector
from recipes.selector_study.columns import (
    Columns,
    joined,
    kind_columns,
    paper_columns,
    sibling_columns,
    token_columns,
    word_columns,
)
from recipes.selector_study.entrants import (
    ByColumn,
    Entrant,
    Fitted,
    Settings,
    Shipped,
    logarithms,
    normal_scores,
    scaled,
    square_roots,
)
from recipes.selector_study.regressors import (
    GaussianProcess,
    Mean,
    Network,
    Regressor,
    Ridge,
    Stumps,
    cubic,
    squares,
)

PAPER = "learned"
"""The paper's selector with the paper's settings: the real class."""

CHOSEN = "ridge, cubes, roots, long memory"
"""What the package ships as the policy `regressed`."""

Factory = Callable[[], Entrant]


def roster() -> dict[str, Factory]:
    """Return every entrant; the README says what each is."""
    six = Settings(columns=paper_columns)
    tokens = Settings(columns=joined(paper_columns, token_columns))
    siblings = Settings(columns=joined(paper_columns, sibling_columns))
    rich = Settings(columns=joined(paper_columns, token_columns, sibling_columns))
    kinds = replace(rich, columns=joined(rich.columns, kind_columns))
    words = replace(rich, columns=joined(rich.columns, word_columns))
    process = Settings(columns=paper_columns, capacity=768)
    roots = replace(six, target=square_roots, half_life=100.0, capacity=8192, start=96)
    rich_process = replace(rich, capacity=768)
    return {
        "random": lambda: Shipped(RandomSelector()),
        "entropy": lambda: Shipped(EntropySelector()),
        PAPER: lambda: Shipped(LearnedSelector()),
        # The paper's class, other settings.
        "learned, no exploration": _learned(exploration=0),
        "learned, rate 1e-2": _learned(learning_rate=1e-2),
        "learned, 20 updates": _learned(updates_per_step=20),
        "learned, 20 updates, rate 1e-2": _learned(updates_per_step=20, learning_rate=1e-2),
        "learned, 20 updates, all labels": _learned(
            updates_per_step=20, learning_rate=1e-2, replay_capacity=8192, half_life=40
        ),
        # The paper's network on other targets, six features.
        "network, layer norm": _network(replace(six, exploration=0.1), 6, layer_norm=True),
        "network": _network(replace(six, exploration=0.1), 6),
        "network, normal scores": _network(replace(six, exploration=0.1, target=normal_scores), 6),
        "network, logarithms": _network(replace(six, exploration=0.1, target=logarithms), 6),
        # Regressions in closed form, six features.
        "ridge, 10 % random": _fitted(Ridge, replace(six, exploration=0.1)),
        "ridge": _fitted(Ridge, six),
        "ridge, bonus": _fitted(Ridge, replace(six, bonus=1.0)),
        "ridge, thompson": _fitted(Ridge, replace(six, is_thompson=True)),
        "ridge, normal scores": _fitted(Ridge, replace(six, target=normal_scores)),
        "ridge, square roots": _fitted(Ridge, replace(six, target=square_roots)),
        "ridge, logarithms": _fitted(Ridge, replace(six, target=logarithms)),
        "ridge, ranked columns": _fitted(Ridge, replace(six, scale="ranks")),
        "ridge, long memory": _fitted(Ridge, replace(six, half_life=100.0, capacity=8192)),
        "ridge, short memory": _fitted(Ridge, replace(six, half_life=5.0)),
        "ridge, roots, long memory": _fitted(Ridge, roots),
        "ridge, roots, long memory, bonus": _fitted(Ridge, replace(roots, bonus=1.0)),
        CHOSEN: _fitted(_cubes, roots),
        "ridge, cubes, 10 % random": _fitted(_cubes, replace(roots, exploration=0.1)),
        "stumps": _fitted(Stumps, six),
        "process": _fitted(GaussianProcess, process),
        "process, bonus": _fitted(GaussianProcess, replace(process, bonus=0.5)),
        # More columns from the same rollouts.
        "ridge, token columns": _fitted(_wide, tokens),
        "ridge, sibling columns": _fitted(_wide, siblings),
        "ridge, all columns": _fitted(_wide, rich),
        "ridge, all columns, bonus": _fitted(_wide, replace(rich, bonus=1.0)),
        "ridge, all columns, square roots": _fitted(_wide, replace(rich, target=square_roots)),
        "ridge, all columns, ranked": _fitted(_wide, replace(rich, scale="ranks")),
        "ridge, all columns and kind": _fitted(_wide, kinds),
        "ridge, all columns and words": _fitted(_wide, words),
        "stumps, all columns": _fitted(Stumps, rich),
        "process, all columns": _fitted(GaussianProcess, rich_process),
        "process, all columns, bonus": _fitted(GaussianProcess, replace(rich_process, bonus=0.5)),
        "mean of three, all columns": _fitted(_mean_of_three, rich_process),
        # The sum over tokens, which is then divided by their number.
        "ridge, total": _fitted(Ridge, replace(six, is_total=True, target=scaled)),
        "ridge, all columns, total": _fitted(_wide, replace(rich, is_total=True, target=scaled)),
        "stumps, all columns, total": _fitted(Stumps, replace(rich, is_total=True, target=scaled)),
        # What a query costs.
        "ridge, per token": _fitted(Ridge, replace(six, per_token=True, target=scaled)),
        "ridge, all columns, per token": _fitted(
            _wide, replace(rich, per_token=True, target=scaled)
        ),
    }


def single_columns(columns: Columns, names: list[str]) -> dict[str, Factory]:
    """Return an entrant for either end of every column."""
    return {
        f"{end} {name}": lambda name=name, sign=sign: ByColumn(columns, name, sign=sign)
        for name in names
        for end, sign in (("high", 1), ("low", -1))
    }


def _learned(**settings: Any) -> Factory:
    return lambda: Shipped(LearnedSelector(**settings))


def _network(settings: Settings, columns: int, **network: Any) -> Factory:
    return lambda: Fitted(Network(columns, **network), settings)


def _fitted(regressor: Callable[[], Regressor], settings: Settings) -> Factory:
    return lambda: Fitted(regressor(), settings)


def _wide() -> Ridge:
    """Without products of columns: with thirty of them there would be five hundred."""
    return Ridge(squares)


def _cubes() -> Ridge:
    return Ridge(cubic)


def _mean_of_three() -> Mean:
    return Mean(_wide(), Stumps(), GaussianProcess())
