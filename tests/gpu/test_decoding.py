"""Decoding by a CUDA graph, against the growing cache on the same GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from stage_fixtures import make_examples, make_model

from bas_opd.data.views import full_view
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.rollout import Sampler, SamplingSettings
from bas_opd.types import PromptBatch, Rollouts

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("family", ["small_qwen35", "small_qwen3vl", "small_qwen25vl"])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_a_graph_draws_what_the_growing_cache_draws(
    family: str,
    precision: torch.dtype,
    top_p: float,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    cpu = make_model(request.getfixturevalue(family))
    model = VisionLanguageModel(cpu.network.cuda(), cpu.processor, precision=precision)
    examples = make_examples(tmp_path, 6)
    settings = SamplingSettings(max_response_tokens=24, top_p=top_p)
    graphed = Sampler(model, full_view, settings)
    growing = Sampler(model, full_view, settings)
    growing.use_graphs = False

    def both(step: int) -> tuple[Rollouts, Rollouts]:
        batch = PromptBatch(step=step, examples=examples)
        return graphed.generate(batch), growing.generate(batch)

    for step in range(3):
        fast, slow = both(step)
        width = min(fast.tokens.shape[1], slow.tokens.shape[1])
        same = (fast.tokens[:, :width] == slow.tokens[:, :width]).all(1)
        assert same.float().mean() > (0.99 if precision is torch.float32 else 0.5)
        torch.testing.assert_close(
            fast.logprobs[same][:, :width], slow.logprobs[same][:, :width], atol=0.05, rtol=0.05
        )
        with torch.no_grad():  # The graph must see weights that change in place.
            for parameter in model.trainable().values():
                parameter.mul_(1.05)
    assert graphed._decode._steps
    assert not growing._decode._steps
