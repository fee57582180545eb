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
from bas_opd.select.rules import RULES, ranked
from bas_opd.types import FEATURES, Budget, Candidates, Selection


class Selector(Protocol):
    """Chooses S before any teacher computation, and may learn from what the teacher then said."""

    @property
    def is_trained(self) -> bool:
        """Whether rows are ranked by what the policy has learned."""
        ...

    def select(self, candidates: Candidates, budget: Budget | int, *, step: int) -> Selection:
        """Choose candidates within a budget (Alg. 1, lines 5-10); a plain number counts calls."""
        ...

    def learn(self, candidates: Candidates, utility: Mapping[int, float], *, step: int) -> bool:
        """Take in the utility of selected rows; True if the policy changed (Alg. 1, line 14)."""
        ...

    def predicted_utility(self, candidates: Candidates) -> list[float | None]:
        """Return the predicted utility of each row; None where the policy predicts nothing."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Return all that the policy has learned, as tensors by name."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        ...


class _Fixed:
    """A policy that no label changes."""

    is_trained = False

    def learn(self, candidates: Candidates, utility: Mapping[int, float], *, step: int) -> bool:
        return False

    def predicted_utility(self, candidates: Candidates) -> list[float | None]:
        return [None] * len(candidates)

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        pass


class FullSelector(_Fixed):
    """Query every candidate: plain on-policy distillation."""

    def select(self, candidates: Candidates, budget: Budget | int, *, step: int) -> Selection:
        limit = Budget.of(budget).limit
        if limit < len(candidates):
            raise BudgetError(
                f"The full policy queries all {len(candidates)} candidates of step {step}, but the "
                f"budget is {limit}. Set the query ratio to 1 or choose another policy."
            )
        return Selection(rows=tuple(sorted(candidates.rows)), budget=budget)


class RandomSelector(_Fixed):
    """Query rows drawn uniformly without replacement, a pure function of (seed, step)."""

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed

    def select(self, candidates: Candidates, budget: Budget | int, *, step: int) -> Selection:
        return uniform_selection(candidates, budget, seed=self.seed, step=step)


class EntropySelector(_Fixed):
    """Query the rows of highest mean token entropy, or mean NLL where no entropy is known."""

    def select(self, candidates: Candidates, budget: Budget | int, *, step: int) -> Selection:
        features = RULES["entropy"].ranks_by
        assert features is not None
        column = FEATURES.index(features[0] if candidates.has_entropy else features[1])
        scores = finite_scores(candidates.rows, candidates.values[:, column].tolist())
        chosen = ranked(candidates.rows, scores)[: affordable(candidates, budget)]
        return Selection(rows=tuple(sorted(chosen)), budget=budget, scores=scores)


def uniform_selection(
    candidates: Candidates, budget: Budget | int, *, seed: int, step: int
) -> Selection:
    """Choose K candidates uniformly without replacement (Alg. 1, line 6)."""
    generator = addressed_generator("uniform", seed, step)
    chosen = draw_rows(candidates.rows, affordable(candidates, budget), generator)
    return Selection(rows=tuple(sorted(chosen)), budget=budget)


def explored_selection(
    candidates: Candidates,
    budget: Budget | int,
    *,
    scores: dict[int, float],
    exploration: float | str | Decimal,
    seed: int,
    step: int,
) -> Selection:
    """Choose the K - K_e highest scores and K_e of the rest at random (Alg. 1, lines 8-10)."""
    order = ranked(candidates.rows, scores)
    count = affordable(candidates, budget)
    explore = exploration_quota(exploration, count)
    best, rest = order[: count - explore], order[count - explore :]
    explored = draw_rows(rest, explore, addressed_generator("explore", seed, step))
    return Selection(
        rows=tuple(sorted(best + explored)),
        budget=budget,
        explored=frozenset(explored),
        scores=scores,
    )


def affordable(candidates: Candidates, budget: Budget | int) -> int:
    """Return how many rows to choose: the budget, or every candidate if that is fewer."""
    limit = Budget.of(budget).limit
    if limit < 0:
        raise BudgetError(f"The budget is {limit} queries; it cannot be negative.")
    return min(limit, len(candidates))


def finite_scores(rows: Sequence[int], scores: Sequence[float]) -> dict[int, float]:
    """Map each row to its score, leaving out the rows whose score means nothing."""
    return {row: s for row, s in zip(rows, scores, strict=True) if math.isfinite(s)}
