"""The seam of selection, and the policies that have nothing to learn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Protocol

from torch import Tensor

from bas_opd.budget import exploration_quota
from bas_opd.errors import BudgetError
from bas_opd.select.draws import addressed_generator, draw_rows
from bas_opd.types import FEATURES, Features, Selection


class Selector(Protocol):
    """Chooses S before any teacher computation, and may learn from what the teacher then said."""

    def select(self, features: Features, budget: int, *, step: int) -> Selection:
        """Choose at most `budget` of the candidates (Alg. 1, lines 5-10)."""
        ...

    def learn(self, features: Features, utility: Mapping[int, float], *, step: int) -> bool:
        """Take in the utility of selected rows; True if the policy changed (Alg. 1, line 14)."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Return all that the policy has learnt, as tensors by name."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go back to what `state_dict` returned."""
        ...


class _Fixed:
    """A policy that no label changes."""

    def learn(self, features: Features, utility: Mapping[int, float], *, step: int) -> bool:
        return False

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        pass


class FullSelector(_Fixed):
    """Query every candidate: plain on-policy distillation."""

    def select(self, features: Features, budget: int, *, step: int) -> Selection:
        if budget < len(features):
            raise BudgetError(
                f"The full policy queries all {len(features)} candidates of step {step}, but the "
                f"budget is {budget}. Set the query ratio to 1 or choose another policy."
            )
        return Selection(rows=tuple(sorted(features.rows)), budget=budget)


class RandomSelector(_Fixed):
    """Query rows drawn uniformly without replacement, a pure function of (seed, step)."""

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed

    def select(self, features: Features, budget: int, *, step: int) -> Selection:
        return uniform_selection(features, budget, seed=self.seed, step=step)


class EntropySelector(_Fixed):
    """Query the rows of highest mean token entropy, or mean NLL where no entropy is known."""

    def select(self, features: Features, budget: int, *, step: int) -> Selection:
        column = FEATURES.index("mean_entropy" if features.has_entropy else "mean_nll")
        scores = finite_scores(features.rows, features.values[:, column].tolist())
        chosen = ranked(features.rows, scores)[: affordable(features, budget)]
        return Selection(rows=tuple(sorted(chosen)), budget=budget, scores=scores)


def uniform_selection(features: Features, budget: int, *, seed: int, step: int) -> Selection:
    """Choose K candidates uniformly without replacement (Alg. 1, line 6)."""
    generator = addressed_generator("uniform", seed, step)
    chosen = draw_rows(features.rows, affordable(features, budget), generator)
    return Selection(rows=tuple(sorted(chosen)), budget=budget)


def explored_selection(
    features: Features,
    budget: int,
    *,
    scores: dict[int, float],
    exploration: float | str | Decimal,
    seed: int,
    step: int,
) -> Selection:
    """Choose the K - K_e highest scores and K_e of the rest at random (Alg. 1, lines 8-10)."""
    order = ranked(features.rows, scores)
    count = affordable(features, budget)
    explore = exploration_quota(exploration, count)
    best, rest = order[: count - explore], order[count - explore :]
    explored = draw_rows(rest, explore, addressed_generator("explore", seed, step))
    return Selection(
        rows=tuple(sorted(best + explored)),
        budget=budget,
        explored=frozenset(explored),
        scores=scores,
    )


def affordable(features: Features, budget: int) -> int:
    """Return how many rows to choose: the budget, or every candidate if that is fewer."""
    if budget < 0:
        raise BudgetError(f"The budget is {budget} queries; it cannot be negative.")
    return min(budget, len(features))


def finite_scores(rows: Sequence[int], scores: Sequence[float]) -> dict[int, float]:
    """Map each row to its score, leaving out the rows whose score means nothing."""
    return {row: s for row, s in zip(rows, scores, strict=True) if math.isfinite(s)}


def ranked(rows: Sequence[int], scores: Mapping[int, float]) -> list[int]:
    """Order rows by falling score, the lower row first on ties, rows without a score last."""
    return sorted(rows, key=lambda row: (-scores.get(row, -math.inf), row))
