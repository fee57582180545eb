"""Laws of selection, over random inputs."""

from __future__ import annotations

import random
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bas_opd.select import (
    CoveringSelector,
    EntropySelector,
    LearnedSelector,
    RandomSelector,
    RegressedSelector,
    Selector,
    build_selector,
    exploration_quota,
    features_from,
    query_budget,
    step_budget,
)
from bas_opd.types import BudgetKind, Costs, Features

RATIOS = st.decimals(min_value=0, max_value=1, allow_nan=False, allow_infinity=False)


KINDS = get_args(BudgetKind)
SELECTIVE = ["random", "entropy", "learned", "regressed", "covering"]
Learning = type[LearnedSelector] | type[RegressedSelector]
TRAINED: dict[str, Learning] = {
    "trained learned": LearnedSelector,
    "trained regressed": RegressedSelector,
    "trained covering": CoveringSelector,
}
LEARNING = pytest.mark.parametrize("kind", [LearnedSelector, RegressedSelector])


def _trained_selector(
    exploration: str = "0.1", kind: Learning = LearnedSelector, *, coverage: bool = False
) -> LearnedSelector | RegressedSelector:
    selector = kind(replay_start=8, exploration=exploration, coverage=coverage)
    features = _features(random.Random(0), 8)
    assert selector.learn(features, {row: row / 8 for row in features.rows}, step=0)
    return selector


def _features(source: random.Random, count: int) -> Features:
    """Rows in any order, with ties, gaps and an occasional value that is not finite."""
    generator = torch.Generator().manual_seed(source.randrange(2**31))
    values = torch.randint(0, 5, (count, 6), generator=generator).double()
    if count and source.random() < 0.1:
        values[source.randrange(count), source.randrange(6)] = source.choice([torch.nan, torch.inf])
    rows = tuple(source.sample(range(2 * count), count))
    return Features(
        rows=rows,
        values=values,
        has_entropy=source.random() < 0.8,
        prompts=tuple(row // 8 for row in rows),
        texts=tuple(source.randrange(6) for _ in rows),
    )


@given(RATIOS.filter(bool), st.integers(0, 10**12))
def test_the_budget_is_the_exact_floor(ratio: Decimal, candidates: int) -> None:
    exact = floor(Fraction(ratio) * candidates)
    assert query_budget(ratio, candidates) == query_budget(str(ratio), candidates) == exact


@given(RATIOS, st.integers(0, 10**12))
def test_the_exploration_quota_is_the_exact_ceiling_within_the_budget(
    epsilon: Decimal, budget: int
) -> None:
    quota = exploration_quota(epsilon, budget)
    assert quota == ceil(Fraction(epsilon) * budget)
    assert 0 <= quota <= budget


@given(st.floats(0, 1, exclude_min=True), st.integers(0, 10**6))
def test_a_float_ratio_is_the_decimal_it_prints(ratio: float, candidates: int) -> None:
    assert query_budget(ratio, candidates) == floor(Fraction(repr(ratio)) * candidates)


def test_ten_thousand_random_cases_never_overrun() -> None:
    source = random.Random(2)
    policies: list[Selector] = [
        build_selector("full"),
        RandomSelector(seed=1),
        EntropySelector(),
        LearnedSelector(),
        _trained_selector(),
        RegressedSelector(),
        _trained_selector(kind=RegressedSelector),
    ]
    for case in range(10_000):
        selector = policies[case % len(policies)]
        features = _features(source, source.randrange(0, 40))
        ratio = 1 if case % len(policies) == 0 else source.choice([0.01, 0.1, 0.25, 0.29, 0.5, 1])
        budget = query_budget(ratio, len(features))
        selection = selector.select(features, budget, step=case)
        assert len(selection.rows) == len(set(selection.rows)) == budget
        assert budget <= Fraction(str(ratio)) * len(features)
        assert set(selection.rows) <= set(features.rows)
        assert selection.explored <= set(selection.rows)
        assert selection.scores.keys() <= set(features.rows)


def _priced(source: random.Random, features: Features, kind: BudgetKind) -> Costs | None:
    """Costs in tokens, some of them 0, with prompts that cost something or not."""
    if kind == "calls":
        return None
    prompts = dict(zip(features.rows, features.prompts or (), strict=True))
    openings = {prompt: source.randrange(0, 50) for prompt in prompts.values()}
    return Costs(
        rows={row: source.randrange(0, 20) for row in features.rows},
        prompts=prompts,
        openings=openings if kind == "processed_tokens" else {},
    )


def test_ten_thousand_random_cases_never_overrun_in_any_unit() -> None:
    source = random.Random(4)
    policies: list[Selector] = [
        build_selector("full"),
        *(RandomSelector(seed=1, coverage=coverage) for coverage in (False, True)),
        *(EntropySelector(coverage=coverage) for coverage in (False, True)),
        LearnedSelector(),
        *(_trained_selector(coverage=coverage) for coverage in (False, True)),
        _trained_selector(kind=RegressedSelector),
        CoveringSelector(),
        _trained_selector(kind=CoveringSelector, exploration="0"),
        _trained_selector(kind=CoveringSelector),
    ]
    for case in range(10_000):
        selector, is_full = policies[case % len(policies)], case % len(policies) == 0
        kind = KINDS[case // len(policies) % len(KINDS)]
        features = _features(source, source.randrange(0, 40))
        ratio = 1 if is_full else source.choice([0.01, 0.1, 0.25, 0.29, 0.5, 1])
        costs = _priced(source, features, kind)
        budget = step_budget(ratio, features.rows, kind, costs)
        full = len(features) if costs is None else costs.of(features.rows)
        assert budget.limit == floor(Fraction(str(ratio)) * full)
        selection = selector.select(features, budget, step=case)
        spent = len(selection.rows) if costs is None else costs.of(selection.rows)
        assert selection.spent == spent <= budget.limit
        assert len(selection.rows) == len(set(selection.rows))
        assert set(selection.rows) <= set(features.rows)
        assert selection.explored <= set(selection.rows)
        if is_full:
            assert set(selection.rows) == set(features.rows)
        if getattr(selector, "coverage", False):
            _assert_no_repeat(features, set(selection.rows) - selection.explored)
        else:  # no row is left that would still have fitted
            for row in set(features.rows) - set(selection.rows):
                assert budget.spent([*selection.rows, row]) > budget.limit


def _assert_no_repeat(features: Features, rows: set[int]) -> None:
    said = [
        (prompt, text)
        for row, prompt, text in zip(
            features.rows, features.prompts or (), features.texts or (), strict=True
        )
        if row in rows
    ]
    assert len(said) == len(set(said))


@LEARNING
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 60),
    st.integers(0, 60),
    st.sampled_from(["0", "0.07", "0.1", "0.5", "1"]),
    st.integers(0, 10**6),
)
def test_exploration_takes_its_quota_from_the_remainder(
    kind: Learning, count: int, budget: int, exploration: str, step: int
) -> None:
    selector = _trained_selector(exploration=exploration, kind=kind)
    features = _features(random.Random(step), count)
    selection = selector.select(features, budget, step=step)
    chosen = min(count, budget)
    quota = exploration_quota(exploration, chosen)
    assert len(selection.rows) == chosen
    assert len(selection.explored) == quota
    order = sorted(features.rows, key=lambda row: (-selection.scores.get(row, -float("inf")), row))
    assert set(selection.rows) - selection.explored == set(order[: chosen - quota])


def _in_order(column: tuple[Any, ...] | None, order: torch.Tensor) -> tuple[Any, ...]:
    assert column is not None
    return tuple(column[i] for i in order.tolist())


@pytest.mark.parametrize("policy", SELECTIVE)
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 10**6))
def test_the_order_of_the_candidates_changes_nothing(
    policy: str, count: int, budget: int, step: int
) -> None:
    features = _features(random.Random(step), count)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(step))
    shuffled = Features(
        rows=tuple(features.rows[i] for i in order.tolist()),
        values=features.values[order],
        has_entropy=features.has_entropy,
        prompts=_in_order(features.prompts, order),
        texts=_in_order(features.texts, order),
    )
    rows = build_selector(policy).select(features, budget, step=step).rows
    assert build_selector(policy).select(shuffled, budget, step=step).rows == rows


@pytest.mark.parametrize(
    "policy", ["full", "random", "entropy", "learned", "regressed", "covering", *TRAINED]
)
def test_the_global_generator_is_neither_used_nor_moved(policy: str) -> None:
    chosen = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        kind = TRAINED.get(policy)
        selector = _trained_selector(kind=kind) if kind else build_selector(policy)
        features = _features(random.Random(5), 40)
        selection = selector.select(features, 40 if policy == "full" else 12, step=3)
        selector.learn(features, dict.fromkeys(selection.rows, 0.5), step=3)
        chosen.append(selection)
        assert torch.equal(before, torch.get_rng_state())
    assert chosen[0] == chosen[1]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 12), st.integers(0, 5), st.integers(0, 10**6))
def test_padding_never_reaches_a_feature(rows: int, tokens: int, padding: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, tokens + 1, (rows,), generator=generator)
    nll, entropies = torch.rand(2, rows, tokens, generator=generator)
    clean = features_from(-nll, lengths, entropies=entropies)
    assert clean.isfinite().all()

    beyond = torch.arange(tokens + padding) >= lengths[:, None]
    rubbish = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30])
    filler = rubbish[torch.randint(0, 4, beyond.shape, generator=generator)]
    widths = (0, padding)
    padded = [
        torch.where(beyond, filler, torch.nn.functional.pad(values, widths))
        for values in (-nll, entropies)
    ]
    assert torch.equal(features_from(padded[0], lengths, entropies=padded[1]), clean)
