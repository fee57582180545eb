"""The constants of Table 5 and the worked numbers of the method."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from bas_opd.select import (
    LearnedSelector,
    RandomSelector,
    UtilityPredictor,
    exploration_quota,
    query_budget,
)
from bas_opd.types import FEATURES, Features


def test_a_quarter_of_the_papers_batch_is_fifty_and_six() -> None:
    assert query_budget(0.25, 224) == 56
    assert exploration_quota(0.10, 56) == 6


def test_the_two_float_traps_are_avoided() -> None:
    assert math.floor(0.29 * 100) == 28
    assert query_budget(0.29, 100) == 29
    assert math.ceil(0.07 * 100) == 8
    assert exploration_quota(0.07, 100) == 7


@pytest.mark.parametrize("budget", range(1, 11))
def test_up_to_ten_queries_one_explores(budget: int) -> None:
    assert exploration_quota(0.10, budget) == 1


def test_the_eleventh_query_brings_a_second_exploration() -> None:
    assert exploration_quota(0.10, 11) == 2
    assert exploration_quota(0.10, 0) == 0


def test_a_single_query_is_all_exploration() -> None:
    selector = LearnedSelector(replay_start=4)
    values = torch.rand(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    features = Features(rows=(0, 1, 2, 3), values=values)
    assert selector.learn(features, {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}, step=0)
    selection = selector.select(features, 1, step=1)
    assert selection.explored == set(selection.rows)
    assert len(selection.rows) == 1


def test_the_defaults_are_those_of_table_5() -> None:
    selector = LearnedSelector()
    assert len(FEATURES) == 6
    assert selector.predictor.hidden.weight.shape == (32, 6)
    assert type(selector.optimizer) is torch.optim.Adam
    assert selector.optimizer.defaults["lr"] == 1e-3
    assert selector.normaliser.momentum == 0.99
    assert selector.normaliser.EPS == 1e-6
    assert (selector.replay.capacity, selector.replay_start) == (512, 96)
    assert selector.replay_batch == 256
    assert selector.updates_per_step == 2
    assert selector.half_life == 10
    assert selector.rank_weight == 0.2
    assert selector.min_gap == 1e-6
    assert selector.exploration == 0.10
    assert selector.seed == RandomSelector().seed == 0


def test_the_predictor_is_layer_norm_linear_silu_linear() -> None:
    ours = UtilityPredictor(seed=1)
    theirs = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 32), nn.SiLU(), nn.Linear(32, 1)).double()
    weights = ours.state_dict().values()
    theirs.load_state_dict(dict(zip(theirs.state_dict(), weights, strict=True)))
    values = torch.randn(7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ours(values), theirs(values)[:, 0])


def test_learning_starts_at_ninety_six_labels() -> None:
    selector = LearnedSelector()
    values = torch.rand(56, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    features = Features(rows=tuple(range(56)), values=values)
    assert not selector.learn(features, dict.fromkeys(range(56), 0.1), step=0)
    assert not selector.learn(features, dict.fromkeys(range(39), 0.1), step=1)
    assert len(selector.replay) == 95
    assert selector.learn(features, {0: 0.1}, step=2)
