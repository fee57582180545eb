"""The seam of selection, and the policies that have nothing to learn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Protocol

from torch import Tensor

from bas_opd.errors import BudgetError
from bas_opd.select.choice import (
    Responses,
    best_rows,
    covering,
    explored_rows,
    in_order,
    scored_share,
)
from bas_opd.select.draws import addressed_generator, draw_rows
from bas_opd.select.rules import RULES
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
        budget = Budget.of(budget)
        if budget.limit < budget.spent(candidates.rows):
            raise BudgetError(
                f"The full policy queries all {len(candidates)} candidates of step {step}, but the "
                f"budget is {budget.limit}. Set the query ratio to 1 or choose another policy."
            )
        return Selection(rows=tuple(sorted(candidates.rows)), budget=budget)


class RandomSelector(_Fixed):
    """Query rows drawn uniformly without replacement, a pure function of (seed, step)."""

    def __init__(self, *, seed: int = 0, coverage: bool = False) -> None:
        self.seed = seed
        self.coverage = coverage

    def select(self, candidates: Candidates, budget: Budget | int, *, step: int) -> Selection:
        return uniform_selection(
            candidates, budget, seed=self.seed, step=step, coverage=self.coverage
        )


class EntropySelector(_Fixed):
    """Query the rows of highest mean token entropy, or mean NLL where no entropy is known.

    With coverage, rows are ranked by the sum over their tokens: it is tokens that the loss adds up,
    and the mean would prefer the shortest responses.
    """

    def __init__(self, *, coverage: bool = False) -> None:
        self.coverage = coverage

    def select(self, candidates: Candidates, budget: Budget | int, *, step: int) -> Selection:
        features = RULES["entropy"].ranks_by
        assert features is not None
        column = FEATURES.index(features[0] if candidates.has_entropy else features[1])
        values = candidates.values[:, column]
        if self.coverage:
            values = values * candidates.values[:, FEATURES.index("response_tokens")]
        scores = finite_scores(candidates.rows, values.tolist())
        responses = _responses(candidates) if self.coverage else None
        chosen = best_rows(candidates.rows, scores, Budget.of(budget), responses=responses)
        return Selection(rows=tuple(sorted(chosen)), budget=budget, scores=scores)


def uniform_selection(
    candidates: Candidates,
    budget: Budget | int,
    *,
    seed: int,
    step: int,
    coverage: bool = False,
    prior: Mapping[int, float] | None = None,
) -> Selection:
    """Choose candidates uniformly without replacement, as many as fit (Alg. 1, line 6).

    With coverage the random order decides only between rows that add as much. A prior is what rows
    are covered by before anything is learned.
    """
    budget, generator = Budget.of(budget), addressed_generator("uniform", seed, step)
    order = draw_rows(candidates.rows, len(candidates), generator)
    if coverage:
        chosen = covering(order, prior or {}, budget, **_responses(candidates))
    else:
        chosen = in_order(order, budget)
    return Selection(rows=tuple(sorted(chosen)), budget=budget)


def explored_selection(
    candidates: Candidates,
    budget: Budget | int,
    *,
    scores: dict[int, float],
    exploration: float | str | Decimal,
    seed: int,
    step: int,
    coverage: bool = False,
) -> Selection:
    """Choose the K - K_e highest scores and K_e of the rest at random (Alg. 1, lines 8-10).

    In tokens, the scores choose what fits into their share, and exploration what then still fits.
    With coverage, exploration draws no text that its prompt has already.
    """
    budget = Budget.of(budget)
    rows, responses = candidates.rows, _responses(candidates) if coverage else None
    best, most = scored_share(rows, scores, budget, exploration=exploration, responses=responses)
    rest = set(rows) - set(best)
    order = draw_rows(rest, len(rest), addressed_generator("explore", seed, step))
    explored = explored_rows(order, budget, limit=most, beside=best, responses=responses)
    return Selection(
        rows=tuple(sorted(best + explored)),
        budget=budget,
        explored=frozenset(explored),
        scores=scores,
    )


def _responses(candidates: Candidates) -> Responses:
    """Return the prompt and the text of each row, which coverage needs."""
    if candidates.prompts is None:
        raise ValueError(
            "Coverage needs the prompt of each row. Pass Candidates(..., prompts=...), and texts "
            "so that repeated responses are known."
        )
    rows, texts = candidates.rows, candidates.texts
    return {
        "prompts": dict(zip(rows, candidates.prompts, strict=True)),
        "texts": None if texts is None else dict(zip(rows, texts, strict=True)),
    }


def finite_scores(rows: Sequence[int], scores: Sequence[float]) -> dict[int, float]:
    """Map each row to its score, leaving out the rows whose score means nothing."""
    return {row: s for row, s in zip(rows, scores, strict=True) if math.isfinite(s)}
