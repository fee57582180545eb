from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bas_opd.errors import ConfigError
from bas_opd.select import LearnedSelector, RandomSelector, selector_loss
from bas_opd.types import Features


def _features(step: int, count: int = 40) -> Features:
    generator = torch.Generator().manual_seed(step)
    values = torch.rand(count, 6, dtype=torch.float64, generator=generator)
    values[:, 3] *= 100  # response lengths dwarf the other features
    return Features(rows=tuple(range(count)), values=values)


def _utility(features: Features, rows: tuple[int, ...]) -> dict[int, float]:
    return {row: features.values[features.rows.index(row), 0].item() for row in rows}


def _train(selector: LearnedSelector, steps: range, budget: int = 10) -> list[tuple[int, ...]]:
    chosen = []
    for step in steps:
        features = _features(step)
        selection = selector.select(features, budget, step=step)
        selector.learn(features, _utility(features, selection.rows), step=step)
        chosen.append(selection.rows)
    return chosen


def _trained() -> LearnedSelector:
    selector = LearnedSelector(replay_start=10)
    _train(selector, range(3))
    return selector


def test_rows_are_drawn_at_random_until_the_first_update() -> None:
    selector, random = LearnedSelector(replay_start=25, seed=3), RandomSelector(seed=3)
    for step, updates in enumerate([False, False, True, True]):
        features = _features(step)
        selection = selector.select(features, 10, step=step)
        if step < 3:
            assert selection == random.select(features, 10, step=step)
            assert not selection.scores
            assert not selection.explored
        else:
            assert selection.scores.keys() == set(features.rows)
            assert len(selection.explored) == 1
        learned = selector.learn(features, _utility(features, selection.rows), step=step)
        assert learned is updates


def test_the_best_rows_are_queried_and_the_rest_explored() -> None:
    selector, features = _trained(), _features(9)
    selection = selector.select(features, 25, step=9)
    best = sorted(features.rows, key=lambda row: -selection.scores[row])[:22]
    assert set(selection.rows) == set(best) | selection.explored
    assert len(selection.explored) == 3
    assert not selection.explored & set(best)


def test_exploration_is_uniform_over_the_remainder() -> None:
    selector, features = _trained(), _features(9, count=12)
    statistics = selector.normaliser.state_dict()
    counts: dict[int, int] = {}
    for step in range(1000):
        selector.normaliser.load_state_dict(statistics)  # so that the best row stays the best
        for row in selector.select(features, 2, step=step).explored:
            counts[row] = counts.get(row, 0) + 1
    # 1000 / 11 = 91 expected of each, with a standard deviation of about 9.
    assert len(counts) == 11
    assert max(abs(count - 91) for count in counts.values()) < 45


def test_exploration_depends_on_seed_and_step_alone() -> None:
    state, features = _trained().state_dict(), _features(9)

    def explored(seed: int, step: int) -> frozenset[int]:
        selector = LearnedSelector(seed=seed)
        selector.load_state_dict(state)
        return selector.select(features, 30, step=step).explored

    assert explored(1, 5) == explored(1, 5)
    assert len({explored(1, 5), explored(1, 6), explored(2, 5)}) == 3


def test_equal_predictions_are_taken_in_row_order() -> None:
    selector = _trained()
    features = Features(
        rows=tuple(range(8)), values=_features(0).values[:1].expand(8, -1).contiguous()
    )
    selection = selector.select(features, 5, step=4)
    assert selection.rows[:4] == (0, 1, 2, 3)
    assert selection.explored <= {4, 5, 6, 7}


def test_without_exploration_no_row_is_explored() -> None:
    selector = LearnedSelector(replay_start=10, exploration=0)
    _train(selector, range(3))
    selection = selector.select(_features(9), 10, step=9)
    assert not selection.explored
    assert len(selection.rows) == 10


def test_the_normaliser_is_updated_by_selecting_and_by_nothing_else() -> None:
    selector, features = LearnedSelector(replay_start=1), _features(0)
    selector.select(features, 0, step=0)
    torch.testing.assert_close(selector.normaliser.mean, features.values.mean(0))
    before = selector.normaliser.state_dict()
    assert selector.learn(features, {0: 0.5, 1: 0.25}, step=0)
    selector.select(Features(rows=(), values=features.values[:0]), 0, step=1)
    after = selector.normaliser.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_row_with_a_non_finite_feature_poisons_nothing() -> None:
    selector, features = _trained(), _features(9)
    features.values[7, 2] = torch.nan
    selection = selector.select(features, 39, step=9)
    assert selector.normaliser.mean.isfinite().all()
    assert 7 not in selection.scores
    assert 7 not in set(selection.rows) - selection.explored
    stored = len(selector.replay)
    assert not selector.learn(features, {7: 0.5}, step=9)
    assert len(selector.replay) == stored


def test_no_new_label_means_no_update() -> None:
    selector = _trained()
    before = selector.state_dict()
    assert not selector.learn(_features(9), {}, step=9)
    assert not selector.learn(_features(9), {3: float("nan")}, step=9)
    assert selector.replay.dropped == 1
    after = selector.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before if "dropped" not in key)


def test_a_utility_for_an_unknown_row_is_refused() -> None:
    with pytest.raises(ValueError, match="Step 2 brings a utility for row 99"):
        LearnedSelector().learn(_features(2), {99: 0.5}, step=2)


def test_learning_does_not_depend_on_the_order_of_the_labels() -> None:
    states = []
    for flip in (1, -1):
        selector, features = LearnedSelector(replay_start=1), _features(0)
        rows = selector.select(features, 10, step=0).rows
        utility = dict(list(_utility(features, rows).items())[::flip])
        selector.learn(features, utility, step=0)
        states.append(selector.state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_each_step_makes_its_updates_on_fresh_weighted_minibatches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[Tensor, Tensor]] = []

    def spy(predicted: Tensor, utility: Tensor, age: Tensor, **settings: float) -> Tensor:
        assert settings == {"half_life": 7, "rank_weight": 0.3, "min_gap": 1e-3}
        seen.append((utility, age))
        return selector_loss(predicted, utility, age, **settings)

    monkeypatch.setattr("bas_opd.select.learned.selector_loss", spy)
    selector = LearnedSelector(
        replay_start=10, replay_batch=15, half_life=7, rank_weight=0.3, min_gap=1e-3
    )
    _train(selector, range(5, 7))
    assert [len(utility) for utility, _ in seen] == [10, 10, 15, 15]
    assert set(seen[3][1].tolist()) == {0, 1}
    assert set(seen[2][0].tolist()) != set(seen[3][0].tolist())


def test_replay_normalises_raw_features_with_the_current_statistics() -> None:
    selector = _trained()
    assert selector.replay.labels.features[:, 3].max() > 10
    inputs: list[Tensor] = []
    selector.predictor.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    selector.normaliser.update(_features(50).values * 3)
    features = _features(51)
    selector.learn(features, {0: 0.5}, step=51)
    known = selector.normaliser.normalise(selector.replay.labels.features)
    for batch in inputs:
        assert {tuple(row) for row in batch.tolist()} == {tuple(row) for row in known.tolist()}


def test_a_reloaded_selector_continues_exactly() -> None:
    for start in (0, 1, 4):  # before any step, in the warm-up, after updates
        first = LearnedSelector(replay_start=20, seed=7)
        _train(first, range(start))
        state = first.state_dict()
        second = LearnedSelector(replay_start=20, seed=7)
        _train(second, range(100, 105))  # whatever it held before is replaced
        second.load_state_dict(state)
        later = range(start, start + 4)
        assert _train(first, later) == _train(second, later)
        ends = first.state_dict(), second.state_dict()
        assert ends[0].keys() == ends[1].keys()
        assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


def test_a_state_is_a_snapshot_in_plain_tensors() -> None:
    selector = _trained()
    state = selector.state_dict()
    copies = {key: value.clone() for key, value in state.items()}
    _train(selector, range(3, 6))
    assert all(torch.equal(state[key], copies[key]) for key in state)
    assert {type(value) for value in state.values()} == {Tensor}
    other = LearnedSelector(replay_start=10)
    other.load_state_dict(state)
    _train(other, range(3, 6))
    assert all(torch.equal(state[key], copies[key]) for key in state)


@pytest.mark.parametrize(
    "build",
    [
        lambda: LearnedSelector(replay_start=600),
        lambda: LearnedSelector(replay_start=0),
        lambda: LearnedSelector(replay_batch=0),
        lambda: LearnedSelector(updates_per_step=0),
    ],
)
def test_settings_that_never_learn_are_refused(build: Callable[[], LearnedSelector]) -> None:
    with pytest.raises(ConfigError, match="The selector would never learn"):
        build()


def test_a_bad_exploration_ratio_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="exploration ratio"):
        LearnedSelector(exploration="10%")


def test_the_learned_policy_finds_the_useful_rows() -> None:
    """Utility is a noisy function of the features; half of the oracle's lead must be won."""

    def truth(features: Features) -> Tensor:
        noise = torch.rand(len(features), generator=torch.Generator().manual_seed(len(features)))
        values = features.values
        return 0.5 * values[:, 2] * (values[:, 5] < 0.5) + 0.02 * noise.double()

    selector = LearnedSelector()
    captured, oracle, uniform = 0.0, 0.0, 0.0
    for step in range(100):
        features = _features(step, count=112)
        utility = truth(features)
        selection = selector.select(features, 28, step=step)
        labels = {row: utility[row].item() for row in selection.rows}
        selector.learn(features, labels, step=step)
        if step >= 60:
            captured += sum(labels.values())
            oracle += utility.topk(28).values.sum().item()
            uniform += utility.mean().item() * 28
    assert captured - uniform > 0.5 * (oracle - uniform)
