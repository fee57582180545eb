from __future__ import annotations

import pytest
import torch

from bas_opd.errors import ConfigError
from bas_opd.select import RandomSelector, RegressedSelector, build_selector
from bas_opd.types import Features


def _features(step: int, count: int = 40) -> Features:
    generator = torch.Generator().manual_seed(step)
    values = torch.rand(count, 6, dtype=torch.float64, generator=generator)
    values[:, 3] *= 100  # response lengths dwarf the other features
    return Features(rows=tuple(range(count)), values=values)


def _worth(features: Features) -> torch.Tensor:
    """A product and a square: what a straight line does not find."""
    x = features.values
    return 0.02 * (x[:, 0] * x[:, 3] / 100 + (x[:, 2] - 0.5).square())


def _utility(features: Features, rows: tuple[int, ...]) -> dict[int, float]:
    worth = _worth(features)
    return {row: float(worth[row]) for row in rows}


def _train(selector: RegressedSelector, steps: range, budget: int = 10) -> list[tuple[int, ...]]:
    chosen = []
    for step in steps:
        features = _features(step)
        selection = selector.select(features, budget, step=step)
        selector.learn(features, _utility(features, selection.rows), step=step)
        chosen.append(selection.rows)
    return chosen


def _trained(steps: int = 3, **settings: float) -> RegressedSelector:
    selector = RegressedSelector(**{"replay_start": 10, **settings})  # type: ignore[arg-type]
    _train(selector, range(steps))
    return selector


def test_rows_are_drawn_at_random_until_the_first_fit() -> None:
    selector, random = RegressedSelector(replay_start=25, seed=3), RandomSelector(seed=3)
    for step, fits in enumerate([False, False, True, True]):
        features = _features(step)
        selection = selector.select(features, 10, step=step)
        if step < 3:
            assert selection == random.select(features, 10, step=step)
        else:
            assert selection.scores.keys() == set(features.rows)
            assert not selection.explored
        assert selector.learn(features, _utility(features, selection.rows), step=step) is fits


def test_the_rows_of_highest_prediction_are_queried() -> None:
    selector, features = _trained(), _features(9)
    selection = selector.select(features, 12, step=9)
    best = sorted(features.rows, key=lambda row: -selection.scores[row])[:12]
    assert set(selection.rows) == set(best)


def test_the_prediction_is_the_square_root_of_the_utility_in_its_own_units() -> None:
    selector, features = _trained(steps=40), _features(99)
    root = _worth(features).sqrt()
    error = (selector.predict(features.values) - root).square().mean()
    assert error < 0.1 * root.var()


def test_what_was_seen_long_ago_is_outweighed() -> None:
    selector, features = _trained(steps=8, half_life=1.0), _features(99)
    kept = _trained(steps=8, half_life=1e6)
    for each in (selector, kept):
        for step in range(20, 24):  # the world turns round
            seen = _features(step)
            each.learn(
                seen, {row: 0.04 - u for row, u in enumerate(_worth(seen).tolist())}, step=step
            )
    turned = (0.04 - _worth(features)).sqrt()

    def error(each: RegressedSelector) -> float:
        return float((each.predict(features.values) - turned).square().mean())

    assert error(selector) < 0.5 * error(kept)


def test_the_half_life_reaches_the_policy_that_is_built_by_name() -> None:
    selector = build_selector("regressed", half_life=7)
    assert isinstance(selector, RegressedSelector)
    assert selector.half_life == 7


def test_an_outlier_rules_neither_the_fit_nor_a_prediction() -> None:
    """Beyond the limit it is all the same how far out a feature lies."""
    selectors, coefficients, predicted = [_trained(), _trained()], [], []
    for selector, value in zip(selectors, (1e6, 1e9), strict=True):
        features = _features(9)
        features.values[7, 3] = value
        assert selector._design(features.values).abs().max() == RegressedSelector.LIMIT**3
        selector.learn(features, {row: 0.01 * row for row in range(12)}, step=9)
        coefficients.append(selector.coefficients)
        predicted.append(selector.predict(features.values))
    assert torch.equal(*coefficients)
    assert torch.equal(*predicted)


def test_a_resumed_selector_continues_exactly_as_if_never_stopped() -> None:
    selector = _trained(exploration=0.2)
    resumed = RegressedSelector(replay_start=10, exploration=0.2)
    resumed.load_state_dict(selector.state_dict())
    assert _train(selector, range(3, 9)) == _train(resumed, range(3, 9))
    ours, theirs = selector.state_dict(), resumed.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_a_captured_state_no_longer_changes() -> None:
    selector = _trained()
    state = selector.state_dict()
    before = {key: value.clone() for key, value in state.items()}
    _train(selector, range(3, 5))
    assert all(torch.equal(state[key], before[key]) for key in state)


def test_utilities_that_were_not_paid_for_change_nothing() -> None:
    """It is told of the rows it chose; the order in which they are told is nothing either."""
    selectors = [_trained(), _trained()]
    features = _features(9)
    for selector, order in zip(selectors, (1, -1), strict=True):
        rows = selector.select(features, 10, step=9).rows
        selector.learn(features, _utility(features, rows[::order]), step=9)
        assert len(selector.replay) == 40
    assert torch.equal(*(selector.coefficients for selector in selectors))


def test_a_row_with_a_non_finite_feature_poisons_nothing() -> None:
    selector, features = _trained(), _features(9)
    features.values[7, 2], features.values[8, 0] = torch.nan, torch.inf
    selection = selector.select(features, 38, step=9)
    assert selection.scores.keys() == set(features.rows) - {7, 8}
    assert not {7, 8} & set(selection.rows)
    before = selector.state_dict()
    assert not selector.learn(features, {7: 0.5, 8: 0.5, 3: float("nan")}, step=9)
    after = selector.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before if "dropped" not in key)


def test_labels_that_are_all_alike_are_no_reason_to_fail() -> None:
    selector, features = RegressedSelector(replay_start=1), _features(0)
    selector.select(features, 10, step=0)
    assert selector.learn(features, dict.fromkeys(range(10), 0.25), step=0)
    torch.testing.assert_close(
        selector.predict(features.values), torch.full((40,), 0.5, dtype=torch.float64)
    )


def test_a_utility_for_an_unknown_row_is_refused() -> None:
    with pytest.raises(ValueError, match="Step 2 brings a utility for row 99"):
        RegressedSelector().learn(_features(2), {99: 0.5}, step=2)


@pytest.mark.parametrize("start", [0, 8193])
def test_a_selector_that_would_never_learn_is_refused(start: int) -> None:
    with pytest.raises(ConfigError, match="would never learn"):
        RegressedSelector(replay_start=start)


def test_a_bad_exploration_ratio_fails_at_once() -> None:
    with pytest.raises(ConfigError):
        RegressedSelector(exploration=1.5)
