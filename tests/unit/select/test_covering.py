"""`cover` against the objective it maximises, and the policies that choose by it."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Hashable, Sequence
from dataclasses import replace

import pytest
import torch

from bas_opd.select import (
    CoveringSelector,
    EntropySelector,
    LearnedSelector,
    RandomSelector,
    RegressedSelector,
    build_selector,
    cover,
    mid_ranks,
)
from bas_opd.select.choice import Responses, explored_rows
from bas_opd.select.policies import explored_selection
from bas_opd.types import FEATURES, Budget, Candidates, Costs, Grade


def objective(
    rows: Sequence[int], gains: Sequence[float], prompts: Sequence[int], texts: Sequence[Hashable]
) -> float:
    """F(S), written down as it is defined."""
    total = 0.0
    for prompt in set(prompts):
        best: dict[Hashable, float] = {}
        for row in rows:
            if prompts[row] == prompt:
                best.setdefault(texts[row], gains[row])
        total += math.sqrt(sum(best.values()))
    return total


def greedy(
    gains: Sequence[float], prompts: Sequence[int], texts: Sequence[Hashable], limit: int
) -> list[int]:
    """Take the row that adds most, one after another, by the definition alone."""
    chosen: list[int] = []
    while len(chosen) < limit:
        before = objective(chosen, gains, prompts, texts)
        added = {
            row: objective([*chosen, row], gains, prompts, texts) - before
            for row in range(len(gains))
            if row not in chosen
        }
        row = max(added, key=lambda r: (added[r], -r), default=None)
        if row is None or added[row] <= 1e-12:
            break
        chosen.append(row)
    return chosen


def test_mid_ranks_count_the_lower_scores_and_half_the_ties() -> None:
    assert mid_ranks([5.0, -1.0, 5.0, 7.0]) == [0.5, 0.125, 0.5, 0.875]
    assert mid_ranks([3.0] * 4) == [0.5] * 4
    assert mid_ranks([-math.inf, 0.0]) == [0.25, 0.75]
    assert mid_ranks([]) == []


def test_only_the_order_of_scores_matters() -> None:
    scores = [random.Random(0).gauss(0, 1) for _ in range(50)]
    assert mid_ranks(scores) == mid_ranks([math.exp(7 * score) for score in scores])


@pytest.mark.parametrize("seed", range(30))
def test_the_greedy_choice_is_that_of_the_definition(seed: int) -> None:
    source = random.Random(seed)
    n = source.randrange(1, 25)
    prompts = [source.randrange(5) for _ in range(n)]
    texts = [source.randrange(4) for _ in range(n)]
    # One text has one gain within its prompt; primes keep ties of the sums away.
    worth = {key: source.random() for key in {*zip(prompts, texts, strict=True)}}
    gains = [worth[key] for key in zip(prompts, texts, strict=True)]
    for limit in (0, 1, 3, n):
        assert cover(gains, prompts, texts, limit=limit) == greedy(gains, prompts, texts, limit)


def test_every_prompt_is_covered_before_one_is_asked_twice() -> None:
    """With equal gains a second row of a prompt adds 0.41 of the first."""
    prompts = [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert cover([0.5] * 9, prompts, limit=3) == [0, 3, 6]
    assert cover([0.5] * 9, prompts, limit=5) == [0, 3, 6, 1, 4]


def test_a_much_better_prompt_may_be_asked_twice_first() -> None:
    # sqrt(1.6) - sqrt(0.8) = 0.37; sqrt(0.1) = 0.32.
    assert cover([0.8, 0.8, 0.1], [0, 0, 1], limit=2) == [0, 1]
    assert cover([0.8, 0.8, 0.2], [0, 0, 1], limit=2) == [0, 2]


def test_a_repeated_text_is_never_chosen_and_the_budget_stays_unspent() -> None:
    texts = ["a", "a", "b", "a"]
    assert cover([0.9, 0.8, 0.1, 0.7], [0, 0, 0, 1], texts, limit=4) == [0, 3, 2]
    assert cover([0.9, 0.8, 0.1, 0.7], [0, 0, 0, 1], limit=4) == [0, 3, 1, 2]


def test_a_row_without_a_gain_is_never_chosen() -> None:
    assert cover([0.0, 0.5], [0, 1], limit=2) == [1]


def test_exploration_with_coverage_draws_no_text_twice() -> None:
    texts = {0: "a", 1: "a", 2: "b", 3: "a", 4: "b", 5: "c"}
    responses: Responses = {"prompts": dict.fromkeys(texts, 0), "texts": texts}
    budget = Budget(limit=6)
    taken = explored_rows([1, 4, 2, 3, 5], budget, limit=5, beside=[0], responses=responses)
    assert taken == [4, 5]
    assert explored_rows([1, 4, 2], budget, limit=3, beside=[0], responses=None) == [1, 4]
    candidates = Candidates(
        rows=tuple(texts),
        values=torch.zeros(6, 6, dtype=torch.float64),
        prompts=(0,) * 6,
        texts=tuple(texts.values()),
    )
    for step in range(9):
        chosen = explored_selection(
            candidates,
            6,
            scores=dict.fromkeys(texts, 0.0),
            exploration="0.9",
            seed=0,
            step=step,
            coverage=True,
        )
        assert sorted(texts[row] for row in chosen.rows) == ["a", "b", "c"]
        assert chosen.explored


def test_gain_is_weighed_against_cost() -> None:
    assert cover([0.5, 0.4], [0, 1], costs=[10, 2], limit=10) == [1]
    assert cover([0.5, 0.4], [0, 1], costs=[2, 2], limit=2) == [0]


def test_a_row_that_does_not_fit_is_passed_over_for_the_next() -> None:
    assert cover([0.9, 0.1, 0.1], [0, 0, 1], costs=[9, 3, 4], limit=7) == [1, 2]


def test_the_first_row_of_a_prompt_pays_for_its_opening() -> None:
    gains, prompts = [0.5, 0.5, 0.5], [0, 0, 1]
    assert cover(gains, prompts, costs=[1, 1, 1], openings={0: 10, 1: 10}, limit=12) == [0, 1]
    assert cover(gains, prompts, costs=[1, 1, 1], openings={0: 10, 1: 3}, limit=15) == [2, 0]
    assert cover(gains, prompts, costs=[1, 1, 1], openings={0: 10, 1: 3}, limit=16) == [2, 0, 1]
    assert cover(gains, prompts, costs=[0, 0, 0], openings={0: 1, 1: 2}, limit=2) == [0, 1]


def test_the_first_row_of_a_prompt_is_best_for_both_costs() -> None:
    """By its own cost alone the two-token row would come first, and the opening be paid for it."""
    gains, costs = [0.1, 0.9], [2, 40]
    assert cover(gains, [0, 0], costs=costs, openings={0: 80}, limit=130) == [1, 0]
    assert cover(gains, [0, 0], costs=costs, openings={0: 0}, limit=130) == [0, 1]
    assert cover(gains, [0, 0], costs=costs, openings={0: 80}, limit=100) == [0]


def test_a_repeat_that_costs_less_is_chosen_where_the_first_does_not_fit() -> None:
    assert cover([0.9, 0.1], [0, 0], ["a", "a"], costs=[9, 3], limit=4) == [1]


def test_the_limit_holds_in_ten_thousand_random_cases_and_nothing_that_fits_is_left() -> None:
    source = random.Random(1)
    for _ in range(10_000):
        n = source.randrange(0, 20)
        prompts = [source.randrange(4) for _ in range(n)]
        texts = [source.randrange(5) for _ in range(n)]
        costs = [source.randrange(0, 9) for _ in range(n)]
        openings = {p: source.randrange(0, 20) for p in range(4)}
        gains = [source.random() + 0.01 for _ in range(n)]
        limit = source.randrange(0, 60)
        chosen = cover(gains, prompts, texts, costs, openings, limit=limit)
        said = {(prompts[r], texts[r]) for r in chosen}
        opened = {prompts[r] for r in chosen}
        spent = sum(costs[r] for r in chosen) + sum(openings[p] for p in opened)
        assert spent <= limit
        assert len(said) == len(chosen) == len(set(chosen))
        for row in set(range(n)) - set(chosen):
            if (prompts[row], texts[row]) not in said:
                opening = 0 if prompts[row] in opened else openings[prompts[row]]
                assert spent + costs[row] + opening > limit


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"prompts": [0]}, "2 gains, but 1 prompts"),
        ({"texts": [0]}, "2 gains, but 1 texts"),
        ({"costs": [1, -1]}, "cost of row 1 is -1"),
        ({"gains": [0.1, -0.1]}, "gain of row 1 is -0.1"),
        ({"gains": [math.nan, 0.1]}, "gain of row 0 is nan"),
    ],
)
def test_bad_input_is_named(wrong: dict[str, list[float]], sentence: str) -> None:
    given = {"gains": [0.1, 0.2], "prompts": [0, 1], **wrong}
    with pytest.raises(ValueError, match=sentence):
        cover(**given, limit=1)  # type: ignore[arg-type]


def test_it_needs_no_torch() -> None:
    code = (
        "import sys; from bas_opd.select import cover; assert cover([1, 1], [0, 0], limit=1) == [0]"
        "; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def _candidates(step: int = 0, prompts: int = 5, per_prompt: int = 8) -> Candidates:
    count = prompts * per_prompt
    generator = torch.Generator().manual_seed(step)
    values = torch.rand(count, 6, dtype=torch.float64, generator=generator)
    rows = tuple(range(3, 3 + count))
    return Candidates(
        rows=rows,
        values=values,
        prompts=tuple(i // per_prompt for i in range(count)),
        texts=tuple((i % 6,) for i in range(count)),  # two rows of each prompt repeat others
    )


def _train(selector: CoveringSelector, steps: range, budget: int = 10) -> list[tuple[int, ...]]:
    chosen = []
    for step in steps:
        candidates = _candidates(step)
        selection = selector.select(candidates, budget, step=step)
        worth = {row: float(candidates.values[row - 3, 0]) for row in selection.rows}
        selector.learn(candidates, worth, step=step)
        chosen.append(selection.rows)
    return chosen


def _per_prompt(candidates: Candidates, rows: Sequence[int]) -> list[int]:
    assert candidates.prompts is not None
    place = dict(zip(candidates.rows, candidates.prompts, strict=True))
    return sorted(sum(place[row] == prompt for row in rows) for prompt in set(candidates.prompts))


def test_before_the_first_fit_a_random_order_covers() -> None:
    candidates, selector = _candidates(), CoveringSelector(seed=3)
    rows = [selector.select(candidates, 7, step=step).rows for step in range(80)]
    assert all(_per_prompt(candidates, each) == [1, 1, 1, 2, 2] for each in rows)
    assert len({row for each in rows for row in each}) == len(candidates)  # any row may come
    again = CoveringSelector(seed=3).select(candidates, 7, step=5)
    assert again.rows == rows[5]
    assert not again.scores
    assert CoveringSelector(seed=4).select(candidates, 7, step=5).rows != rows[5]


def test_after_it_the_choice_is_cover_by_the_mid_ranks_of_the_prediction() -> None:
    selector = CoveringSelector(replay_start=10)
    _train(selector, range(3))
    plain = RegressedSelector(replay_start=10)
    plain.load_state_dict(selector.state_dict())
    candidates = _candidates(9)
    selection = selector.select(candidates, 12, step=9)
    assert candidates.prompts is not None
    assert candidates.texts is not None
    picked = cover(
        mid_ranks([selection.scores[row] for row in candidates.rows]),
        candidates.prompts,
        candidates.texts,
        limit=12,
    )
    assert set(selection.rows) == {candidates.rows[i] for i in picked}
    assert not selection.explored
    predicted = plain.select(candidates, 12, step=9).scores
    tokens = candidates.values[:, FEATURES.index("response_tokens")].tolist()
    for row, many in zip(candidates.rows, tokens, strict=True):
        assert selection.scores[row] == pytest.approx(max(predicted[row], 0) ** 2 * many)


def test_of_rows_with_the_same_utility_the_longer_one_adds_more_to_the_loss() -> None:
    """Utility is a mean over tokens, the loss a sum: by the mean the shortest would come first."""
    column = FEATURES.index("response_tokens")
    selector = CoveringSelector(replay_start=10)
    candidates = _candidates()
    values = torch.ones_like(candidates.values)
    values[:, column] = torch.arange(len(candidates)) % 8 + 2
    candidates = replace(candidates, values=values, texts=None)
    for step in range(3):
        selector.select(candidates, 20, step=step)
        selector.learn(candidates, dict.fromkeys(candidates.rows, 0.02), step=step)
    selection = selector.select(candidates, 5, step=9)
    assert [values[row - 3, column] for row in selection.rows] == [9] * 5


def test_a_covering_selector_never_asks_a_repeated_text() -> None:
    candidates = _candidates()
    selection = CoveringSelector().select(candidates, 40, step=0)
    assert _per_prompt(candidates, selection.rows) == [6] * 5  # six texts each; ten calls unspent
    assert selection.spent == 30


def test_a_resumed_covering_selector_continues_exactly_as_if_never_stopped() -> None:
    selector = CoveringSelector(replay_start=10)
    _train(selector, range(3))
    resumed = CoveringSelector(replay_start=10)
    resumed.load_state_dict(selector.state_dict())
    assert _train(selector, range(3, 9)) == _train(resumed, range(3, 9))
    ours, theirs = selector.state_dict(), resumed.state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_entropy_and_random_rows_can_cover_too() -> None:
    candidates = _candidates()
    for selector in (EntropySelector(coverage=True), RandomSelector(coverage=True)):
        assert max(_per_prompt(candidates, selector.select(candidates, 10, step=0).rows)) <= 3
    entropy, tokens = (
        candidates.values[:, FEATURES.index(name)] for name in ("mean_entropy", "response_tokens")
    )
    best = candidates.rows[int((entropy * tokens).argmax())]
    assert best != candidates.rows[int(entropy.argmax())]
    assert EntropySelector(coverage=True).select(candidates, 1, step=0).rows == (best,)


def test_the_explored_rows_of_a_covering_choice_are_random_ones_not_chosen() -> None:
    selector = LearnedSelector(coverage=True, replay_start=10, exploration="0.25")
    selector.learn(_candidates(), {row: row / 40 for row in range(3, 13)}, step=0)
    candidates = _candidates(1)
    selection = selector.select(candidates, 12, step=1)
    assert len(selection.explored) == 3
    assert candidates.prompts is not None
    assert candidates.texts is not None
    picked = cover(
        mid_ranks([selection.scores[row] for row in candidates.rows]),
        candidates.prompts,
        candidates.texts,
        limit=9,
    )
    assert set(selection.rows) - selection.explored == {candidates.rows[i] for i in picked}


def test_exploration_leaves_the_budget_unspent_where_only_repeats_are_left() -> None:
    selector = LearnedSelector(coverage=True, replay_start=10, exploration="0.1")
    selector.learn(_candidates(), {row: row / 40 for row in range(3, 13)}, step=0)
    selection = selector.select(_candidates(1), 40, step=1)
    assert len(selection.rows) - len(selection.explored) == 30  # six texts of five prompts
    assert not selection.explored


@pytest.mark.parametrize("policy", ["random", "entropy", "learned", "regressed"])
def test_coverage_reaches_the_policy_that_is_built_by_name(policy: str) -> None:
    candidates = _candidates()
    covered = build_selector(policy, coverage=True).select(candidates, 5, step=0)
    assert _per_prompt(candidates, covered.rows) == [1] * 5 or policy == "entropy"
    assert covered.rows != build_selector(policy).select(candidates, 5, step=0).rows


def test_coverage_without_prompts_is_refused() -> None:
    candidates = Candidates(rows=(0, 1), values=torch.zeros(2, 6, dtype=torch.float64))
    with pytest.raises(ValueError, match="Coverage needs the prompt of each row"):
        CoveringSelector().select(candidates, 1, step=0)


def test_a_covering_choice_weighs_tokens() -> None:
    """Of rows that gain the same, those that cost less are asked."""
    candidates = _candidates()
    costs = Costs(rows={row: 1 + 9 * (row % 2) for row in candidates.rows})
    budget = Budget(limit=20, kind="scored_tokens", costs=costs)
    selection = CoveringSelector().select(candidates, budget, step=0)
    assert all(costs.rows[row] == 1 for row in selection.rows)
    assert selection.spent == 15  # three texts of each prompt; one of ten tokens does not fit


def _graded(step: int = 0) -> Candidates:
    """Rows of equal features, of which every third is wrong and every third not read."""
    candidates = _candidates(step)
    grades: list[Grade] = ["right", "wrong", "unread"]
    return replace(
        candidates,
        values=torch.ones_like(candidates.values),
        texts=None,
        grades=tuple(grades[row % 3] for row in candidates.rows),
    )


def test_before_the_first_fit_wrong_rows_come_before_unread_and_right_ones() -> None:
    candidates = _graded()
    assert candidates.grades is not None
    grade_of = dict(zip(candidates.rows, candidates.grades, strict=True))
    selection = CoveringSelector(correctness=True).select(candidates, 5, step=0)
    assert {grade_of[row] for row in selection.rows} == {"wrong"}
    assert _per_prompt(candidates, selection.rows) == [1] * 5
    assert not selection.scores
    every = CoveringSelector(correctness=True).select(candidates, 20, step=0)
    chosen = [grade_of[row] for row in every.rows]
    assert chosen.count("wrong") > chosen.count("unread") > chosen.count("right")


def test_whether_a_row_is_right_is_a_feature_of_the_regression() -> None:
    """Here it is the only one that varies, and right rows are worth more than wrong ones."""
    selector = CoveringSelector(correctness=True, replay_start=10)
    worth = {"right": 0.04, "unread": 0.02, "wrong": 0.01}
    for step in range(3):
        candidates = _graded(step)
        assert candidates.grades is not None
        labels = zip(candidates.rows, candidates.grades, strict=True)
        selector.select(candidates, 20, step=step)
        selector.learn(candidates, {row: worth[grade] for row, grade in labels}, step=step)
    candidates = _graded(9)
    assert candidates.grades is not None
    predicted = selector.predicted_utility(candidates)
    for grade, value in zip(candidates.grades, predicted, strict=True):
        assert value == pytest.approx(worth[grade], rel=0.1)
    selection = selector.select(candidates, 5, step=9)
    assert {candidates.grades[candidates.rows.index(row)] for row in selection.rows} == {"right"}
    resumed = CoveringSelector(correctness=True, replay_start=10)
    resumed.load_state_dict(selector.state_dict())
    assert resumed.predicted_utility(candidates) == selector.predicted_utility(candidates)


def test_selection_by_correctness_needs_grades() -> None:
    with pytest.raises(ValueError, match="by correctness needs Candidates"):
        CoveringSelector(correctness=True).select(_candidates(), 5, step=0)


def test_grades_change_nothing_where_they_are_not_asked_for() -> None:
    rows = CoveringSelector().select(_graded(), 12, step=0).rows
    assert rows == CoveringSelector().select(replace(_graded(), grades=None), 12, step=0).rows
