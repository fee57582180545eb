"""Every entrant by name. Each value builds a new one, so that no log teaches another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bas_opd.select import (
    EntropySelector,
    LearnedSelector,
    RandomSelector,
    RegressedSelector,
    Selector,
)
from recipes.selector_study.columns import (
    ALL_COLUMNS,
    joined,
    kind_columns,
    paper_columns,
    sibling_columns,
    token_columns,
    word_columns,
)
from recipes.selector_study.entrants import (
    Entrant,
    Fitted,
    Ranked,
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
    squares,
)
from recipes.selector_study.scored import Candidates

PAPER = "learned"
"""The paper's selector with the paper's settings."""

CHOSEN = "ridge, cubes, roots, long memory"
"""The policy `regressed` of the package, which the study chose."""

Factory = Callable[[], Entrant]


def roster() -> dict[str, Factory]:
    """Return every entrant; the README says what each is."""
    six = Settings(columns=paper_columns)
    tokens = Settings(columns=joined(paper_columns, token_columns))
    siblings = Settings(columns=joined(paper_columns, sibling_columns))
    rich = Settings(columns=joined(paper_columns, token_columns, sibling_columns))
    kinds = replace(rich, columns=joined(rich.columns, kind_columns))
    words = replace(rich, columns=joined(rich.columns, word_columns))
    noisy = replace(six, exploration=0.1)
    roots = replace(six, target=square_roots, half_life=100.0, capacity=8192, start=96)
    process, rich_process = replace(six, capacity=768), replace(rich, capacity=768)
    often = {"updates_per_step": 20, "learning_rate": 1e-2}
    total, per_token = {"is_total": True, "target": scaled}, {"per_token": True, "target": scaled}
    return {
        "random": _shipped(RandomSelector),
        "entropy": _shipped(EntropySelector),
        PAPER: _shipped(LearnedSelector),
        # The paper's class, other settings.
        "learned, no exploration": _shipped(LearnedSelector, exploration=0),
        "learned, rate 1e-2": _shipped(LearnedSelector, learning_rate=1e-2),
        "learned, 20 updates": _shipped(LearnedSelector, updates_per_step=20),
        "learned, 20 updates, rate 1e-2": _shipped(LearnedSelector, **often),
        "learned, 20 updates, all labels": _shipped(
            LearnedSelector, **often, replay_capacity=8192, half_life=40
        ),
        # The paper's network on other targets, six features.
        "network, layer norm": _fitted(lambda: Network(6, layer_norm=True), noisy),
        "network": _fitted(_network, noisy),
        "network, normal scores": _fitted(_network, noisy, target=normal_scores),
        "network, logarithms": _fitted(_network, noisy, target=logarithms),
        # Regressions in closed form, six features.
        "ridge, 10 % random": _fitted(Ridge, noisy),
        "ridge": _fitted(Ridge, six),
        "ridge, bonus": _fitted(Ridge, six, bonus=1.0),
        "ridge, thompson": _fitted(Ridge, six, is_thompson=True),
        "ridge, normal scores": _fitted(Ridge, six, target=normal_scores),
        "ridge, square roots": _fitted(Ridge, six, target=square_roots),
        "ridge, logarithms": _fitted(Ridge, six, target=logarithms),
        "ridge, ranked columns": _fitted(Ridge, six, scale="ranks"),
        "ridge, long memory": _fitted(Ridge, six, half_life=100.0, capacity=8192),
        "ridge, short memory": _fitted(Ridge, six, half_life=5.0),
        "ridge, roots, long memory": _fitted(Ridge, roots),
        "ridge, roots, long memory, bonus": _fitted(Ridge, roots, bonus=1.0),
        CHOSEN: _shipped(RegressedSelector),
        "ridge, cubes, 10 % random": _shipped(RegressedSelector, exploration=0.1),
        "stumps": _fitted(Stumps, six),
        "process": _fitted(GaussianProcess, process),
        "process, bonus": _fitted(GaussianProcess, process, bonus=0.5),
        # More columns from the same rollouts.
        "ridge, token columns": _fitted(_wide, tokens),
        "ridge, sibling columns": _fitted(_wide, siblings),
        "ridge, all columns": _fitted(_wide, rich),
        "ridge, all columns, bonus": _fitted(_wide, rich, bonus=1.0),
        "ridge, all columns, square roots": _fitted(_wide, rich, target=square_roots),
        "ridge, all columns, ranked": _fitted(_wide, rich, scale="ranks"),
        "ridge, all columns and kind": _fitted(_wide, kinds),
        "ridge, all columns and words": _fitted(_wide, words),
        "stumps, all columns": _fitted(Stumps, rich),
        "process, all columns": _fitted(GaussianProcess, rich_process),
        "process, all columns, bonus": _fitted(GaussianProcess, rich_process, bonus=0.5),
        "mean of three, all columns": _fitted(
            lambda: Mean(_wide(), Stumps(), GaussianProcess()), rich_process
        ),
        # The sum over tokens, which is then divided by their number.
        "ridge, total": _fitted(Ridge, six, **total),
        "ridge, all columns, total": _fitted(_wide, rich, **total),
        "stumps, all columns, total": _fitted(Stumps, rich, **total),
        # What a query costs.
        "ridge, per token": _fitted(Ridge, six, **per_token),
        "ridge, all columns, per token": _fitted(_wide, rich, **per_token),
    }


def single_columns(example: Candidates) -> dict[str, Factory]:
    """Return an entrant for either end of every column that such candidates have."""

    def ranked(name: str, sign: int) -> Factory:
        return lambda: Ranked(lambda candidates: sign * ALL_COLUMNS(candidates)[name])

    ends = {"high": 1, "low": -1}
    names = ALL_COLUMNS(example)
    return {f"{end} {name}": ranked(name, sign) for name in names for end, sign in ends.items()}


def _shipped(selector: Callable[..., Selector], **settings: Any) -> Factory:
    return lambda: Shipped(selector(**settings))


def _fitted(regressor: Callable[[], Regressor], settings: Settings, **changes: Any) -> Factory:
    return lambda: Fitted(regressor(), replace(settings, **changes))


def _network() -> Network:
    return Network(6)


def _wide() -> Ridge:
    """Without products of columns: thirty columns would make five hundred."""
    return Ridge(squares)
