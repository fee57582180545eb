"""The choices of a run made again from its records: which rows, and when the policy learned.

Imports no torch. Random draws and predictions need it, and are repeated by a `Replay` on request.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from bas_opd.answers import grade
from bas_opd.budget import query_budget
from bas_opd.config.schema import SelectConfig
from bas_opd.run.record import QueryRecord
from bas_opd.select.choice import (
    Responses,
    covering,
    explored_rows,
    grade_scores,
    in_order,
    new_texts,
    scored_share,
)
from bas_opd.select.rules import PolicyRule
from bas_opd.types import FEATURES, Budget

if TYPE_CHECKING:
    from bas_opd.types import Candidates

TOLERANCE = 1e-6
"""Of the largest score of a step: another processor rounds differently."""


class Replay:
    """Repeats the random draws of a run, and what its selector predicted and learned."""

    def __init__(self, select: SelectConfig) -> None:
        from bas_opd.select import build_selector

        self.seed = select.seed
        self.selector = build_selector(**select.model_dump(exclude={"query_ratio", "budget"}))

    def order(self, stage: str, step: int, rows: Iterable[int]) -> list[int]:
        """Return all rows in the order in which the run drew them."""
        from bas_opd.select.draws import addressed_generator, draw_rows

        drawn = list(rows)
        return draw_rows(drawn, len(drawn), addressed_generator(stage, self.seed, step))

    def scores(self, step: QueryRecord, budget: Budget) -> dict[int, float]:
        """Return the scores that the selector gives; steps must come in their order."""
        candidates = _candidates(step)
        scores = self.selector.select(candidates, budget, step=step.step).scores
        labels = zip(step.selected, step.utility, strict=True)
        self.selector.learn(
            candidates, {row: u for row, u in labels if u is not None}, step=step.step
        )
        return scores


def _candidates(step: QueryRecord) -> Candidates:
    import torch

    from bas_opd.types import Candidates

    values = [[math.nan if x is None else x for x in phi] for phi in step.features]
    return Candidates(
        rows=tuple(step.candidates),
        values=torch.tensor(values, dtype=torch.float64).reshape(len(values), len(FEATURES)),
        has_entropy=step.has_entropy,
        prompts=tuple(step.prompt_of.values()),
        texts=None if step.texts is None else tuple(step.texts),
        grades=None if step.grades is None else tuple(step.grades),
    )


def selection_check(
    select: SelectConfig, rule: PolicyRule, replay: Replay | None
) -> Callable[[QueryRecord], Iterator[str]]:
    """Return the check that S is what the policy chooses, and that it learns when its replay says
    so (Alg. 1); steps must come in their order."""
    held, is_trained = 0, False

    def check(step: QueryRecord) -> Iterator[str]:
        nonlocal held, is_trained
        full = step.budget_of(0).spent(step.candidates)
        budget = step.budget_of(query_budget(select.query_ratio, full))
        yield from _grades(step, select)
        if step.feature_names == list(FEATURES):  # else the budget check says so
            yield from _choice(step, budget, select, rule, replay, is_trained=is_trained)
            if replay and rule.learns:
                yield from _predictions(step, budget, select, replay)
        held = min(select.replay_capacity, held + step.labels)
        must_learn = rule.learns and step.labels > 0 and held >= select.replay_start
        if step.learned != must_learn:
            yield f"learned is {step.learned}, with {held} labels in the replay."
        is_trained |= must_learn

    return check


def _grades(step: QueryRecord, select: SelectConfig) -> Iterator[str]:
    """Whether a row is right follows from its text, where that is on record."""
    if select.correctness != (step.grades is not None):
        yield f"grades is {'missing' if select.correctness else 'on record, but nothing used it'}."
        return
    graded = dict(zip(step.candidates, step.grades or (), strict=bool(step.grades)))
    for shown in step.shown:
        if shown.row not in graded:
            continue
        if graded[shown.row] != (expected := grade(shown.response, shown.answer)):
            yield f"grades has row {shown.row} as {graded[shown.row]}, but it reads as {expected}."


def _choice(
    step: QueryRecord,
    budget: Budget,
    select: SelectConfig,
    rule: PolicyRule,
    replay: Replay | None,
    *,
    is_trained: bool,
) -> Iterator[str]:
    chosen, explored = set(step.selected), set(step.explored)
    if not chosen <= set(step.candidates):
        return  # the budget check names the row
    responses: Responses | None = None
    if select.coverage or rule.covers:
        if step.texts is None:
            yield "texts is missing, by which repeated responses are known."
            return
        responses = {"prompts": step.prompt_of, "texts": step.text_of}
        if len(new_texts(step.selected, responses)) < len(step.selected):
            yield "selected holds two rows of one prompt with the same text."
    exploration = Decimal(0)
    if rule.ranks_by is not None:
        with_entropy, without = rule.ranks_by
        scores = step.feature_of(with_entropy if step.has_entropy else without)
        if responses:
            scores = {row: score * step.response_tokens[row] for row, score in scores.items()}
        if step.score_of != scores:
            yield f"scores are not the feature that the {rule.name} policy ranks by."
    elif rule.learns and is_trained:
        scores, exploration = step.score_of, select.exploration
    else:
        yield from _drawn(step, budget, rule, replay, responses)
        return
    best, share = scored_share(
        step.candidates, scores, budget, exploration=exploration, responses=responses
    )
    if chosen - explored != set(best):
        kind = "cover the prompts" if responses else "have the highest scores"
        yield f"selected holds other rows than the {len(best)} that {kind}."
        return
    rest = set(step.candidates) - set(best)
    left = _fitting(budget, share, step.selected, rest - explored, responses)
    if left is not None:
        yield f"explored leaves out row {left}, which its share of the budget pays for."
    elif budget.spent(step.selected) > share:
        yield f"explored holds {len(explored)} rows, more than its share of the budget pays for."
    elif replay:
        order = replay.order("explore", step.step, rest)
        drawn = explored_rows(order, budget, limit=share, beside=best, responses=responses)
        if explored != set(drawn):
            yield "explored is not what the seed draws."


def _drawn(
    step: QueryRecord,
    budget: Budget,
    rule: PolicyRule,
    replay: Replay | None,
    responses: Responses | None,
) -> Iterator[str]:
    """Rows without a ranking: all of them, or as many at random as the budget pays for."""
    if step.is_ranked:
        yield "scores were recorded, but nothing was ranked yet."
    if step.explored:
        yield "explored names rows, but nothing was ranked yet."
    rest = set(step.candidates) - set(step.selected)
    left = _fitting(budget, budget.limit, step.selected, rest, responses)
    if left is not None:
        yield f"selected leaves out row {left}, which the budget pays for."
    elif replay and rule.draws_at_random:
        order = replay.order("uniform", step.step, step.candidates)
        prior = grade_scores(step.candidates, step.grades) if step.grades else {}
        if responses:
            drawn = covering(order, prior, budget, **responses)
        else:
            drawn = in_order(order, budget)
        if set(step.selected) != set(drawn):
            yield "selected is not what the seed draws."


def _fitting(
    budget: Budget,
    limit: int,
    chosen: Sequence[int],
    rest: Iterable[int],
    responses: Responses | None,
) -> int | None:
    """Return a row of the rest that would still fit beside the chosen ones: none may be left."""
    left = explored_rows(sorted(rest), budget, limit=limit, beside=chosen, responses=responses)
    return next(iter(left), None)


def _predictions(
    step: QueryRecord, budget: Budget, select: SelectConfig, replay: Replay
) -> Iterator[str]:
    """The scores on record are those that the selector gives after the steps before."""
    if select.correctness and step.grades is None:
        return
    expected, recorded = replay.scores(step, budget), step.score_of
    scale = max(map(abs, expected.values()), default=0.0)
    # Predictions below 0 are raised to 0 and tie there. No rounding separates them.
    if expected.keys() != recorded.keys() or any(
        abs(score - recorded[row]) > (TOLERANCE * scale if score else 0)
        for row, score in expected.items()
    ):
        yield "scores are not what the selector predicts after the steps before."
