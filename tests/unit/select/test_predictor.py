from __future__ import annotations

import torch

from bas_opd.select import UtilityPredictor


def test_the_seed_alone_decides_the_initial_weights() -> None:
    torch.manual_seed(1)
    first = UtilityPredictor(seed=3).state_dict()
    torch.manual_seed(2)
    second = UtilityPredictor(seed=3).state_dict()
    other = UtilityPredictor(seed=4).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["hidden.weight"], other["hidden.weight"])


def test_building_one_leaves_the_global_generator_untouched() -> None:
    before = torch.get_rng_state()
    UtilityPredictor()
    assert torch.equal(before, torch.get_rng_state())


def test_initial_weights_fill_the_range_of_a_linear_layer() -> None:
    weight = UtilityPredictor().hidden.weight
    assert 0.9 < weight.abs().max().item() * 6**0.5 <= 1


def test_a_float32_autocast_around_it_changes_no_prediction() -> None:
    predictor, values = UtilityPredictor(), torch.arange(12.0, dtype=torch.float64).reshape(2, 6)
    with torch.autocast("cpu", torch.bfloat16):
        inside = predictor(values)
    assert torch.equal(inside, predictor(values))
    assert inside.dtype == torch.float64
