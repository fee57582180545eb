"""Weights as another engine loads them."""

from __future__ import annotations

from pathlib import Path

import torch
from stage_fixtures import make_model

from bas_opd.model.loading import LoraSettings
from bas_opd.model.weights import plain_weights


def test_all_weights_have_the_names_of_a_checkpoint_and_a_tied_one_comes_once(
    small_qwen3vl: Path,
) -> None:
    model = make_model(small_qwen3vl)
    weights = dict(plain_weights(model.network, model.trainable()))
    assert weights.keys() == model.trainable().keys()
    assert "lm_head.weight" not in weights


def test_given_weights_replace_the_networks_own(small_qwen3vl: Path) -> None:
    model = make_model(small_qwen3vl)
    name, parameter = next(iter(model.trainable().items()))
    weights = dict(plain_weights(model.network, {name: parameter + 1}))
    torch.testing.assert_close(weights[name], parameter.detach() + 1)


def test_adapters_are_added_to_copies_of_what_they_adapt(small_qwen3vl: Path) -> None:
    plain = make_model(small_qwen3vl)
    model = make_model(small_qwen3vl, lora=LoraSettings(rank=4))
    before = dict(plain_weights(model.network))
    assert before.keys() == plain.trainable().keys()
    with torch.no_grad():
        for adapter in model.trainable().values():
            adapter += 0.1
    after = dict(plain_weights(model.network, model.trainable()))
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    assert moved
    assert all("language_model.layers" in name and name.endswith("weight") for name in moved)
    model.network.merge_adapter()  # type: ignore[operator]
    merged = {n.replace(".base_layer", ""): p for n, p in model.network.named_parameters()}
    for name in moved:
        torch.testing.assert_close(after[name], merged[f"base_model.model.{name}"].detach())
