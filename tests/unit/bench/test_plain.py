"""The sides that transformers computes have its own layers, attention and caches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import Family, build_small_model
from stage_fixtures import make_examples, make_model
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

from bas_opd.bench.plain import as_in_transformers, plain_cache
from bas_opd.data.images import open_image


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_vl", "qwen2_5_vl"])
@torch.no_grad()
def test_transformers_continues_our_prefill_with_its_own_cache(
    family: Family, tmp_path: Path
) -> None:
    model = make_model(build_small_model(tmp_path / "model", family=family))
    network: Any = model.network
    prompts = [
        model.processor.encode(open_image(each.image), each.question)
        for each in make_examples(tmp_path, n=2)
    ]
    prefix, tokens = model.prefill(prompts), torch.tensor([[5], [6]])
    with as_in_transformers(network):
        configs = [network.config, network.config.text_config, network.config.vision_config]
        assert {config._attn_implementation for config in configs} == {"sdpa"}
        cache = plain_cache(network, prefix.cache)
        assert {type(layer) for layer in cache.layers} <= {DynamicLayer, LinearAttentionLayer}
        found = network(
            input_ids=tokens,
            attention_mask=torch.cat([prefix.shown(), torch.ones_like(tokens)], dim=1),
            position_ids=prefix.next_position[None, :, None].expand(3, -1, 1),
            past_key_values=cache,
        ).logits[:, -1]
    assert {config._attn_implementation for config in configs} == {"sdpa_grouped"}
    hidden, _ = model.extend(prefix, tokens)
    assert torch.allclose(found, model.logits(hidden[:, -1]), atol=1e-5)
