"""Decoding by a CUDA graph, against the growing cache on the same GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import build_small_model
from stage_fixtures import make_examples, make_model

from bas_opd.compute import compiling
from bas_opd.compute.world import World
from bas_opd.data.views import full_view
from bas_opd.model import delta, delta_step
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.rollout import Sampler, SamplingSettings, decoding, race
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


def test_reference_kernels_capture_nothing_and_draw_the_same(
    small_qwen35: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = PromptBatch(step=0, examples=make_examples(tmp_path, 6))
    settings = SamplingSettings(max_response_tokens=24)
    drawn: list[Rollouts] = []
    for kernels in ("auto", "reference"):
        monkeypatch.setattr(compiling, "_chosen", kernels)
        model = make_model(small_qwen35)
        model = VisionLanguageModel(model.network.cuda(), model.processor)
        sampler = Sampler(model, full_view, settings)
        drawn.append(sampler.generate(batch))
        assert bool(sampler._decode._steps) == (kernels == "auto")
        rounded = VisionLanguageModel(model.network, model.processor, precision=torch.bfloat16)
        assert (rounded.fast_head is None) == (kernels == "reference")
    fast, plain = drawn
    width = min(fast.tokens.shape[1], plain.tokens.shape[1])
    same = (fast.tokens[:, :width] == plain.tokens[:, :width]).all(1)
    assert same.float().mean() > 0.99


@pytest.mark.parametrize("family", ["small_qwen35", "small_qwen3vl"])
@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_graphs_of_exchanged_caches_draw_what_the_growing_cache_draws(
    family: str,
    top_p: float,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decoding, "LARGE_BYTES", 0)
    monkeypatch.setattr(decoding, "STRETCH", 3)
    monkeypatch.setattr(decoding, "CHECK_EVERY", 1)
    monkeypatch.setattr(decoding, "_capacity", lambda tokens: tokens)
    cpu = make_model(request.getfixturevalue(family))
    model = VisionLanguageModel(cpu.network.cuda(), cpu.processor, precision=torch.float32)
    examples = make_examples(tmp_path, 6)
    settings = SamplingSettings(max_response_tokens=24, top_p=top_p)
    graphed, growing = (Sampler(model, full_view, settings) for _ in range(2))
    growing.use_graphs = False
    for step in range(2):
        batch = PromptBatch(step=step, examples=examples)
        fast, slow = graphed.generate(batch), growing.generate(batch)
        assert torch.equal(fast.lengths, slow.lengths)
        assert torch.equal(fast.tokens, slow.tokens)
        torch.testing.assert_close(fast.logprobs, slow.logprobs, atol=1e-3, rtol=1e-3)
    assert len({rows for rows, _ in graphed._decode._steps}) > 1


@pytest.mark.parametrize("family", ["small_qwen35", "small_qwen3vl"])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_sharded_model_decodes_by_graphs_within_a_phase(
    family: str, precision: torch.dtype, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(family)
    models = []
    for _ in range(2):
        cpu = make_model(folder)
        models.append(VisionLanguageModel(cpu.network.cuda(), cpu.processor, precision=precision))
    models[1].shard(World())
    examples, settings = make_examples(tmp_path, 6), SamplingSettings(max_response_tokens=24)
    whole, spread = (Sampler(model, full_view, settings) for model in models)
    captured: list[int] = []
    steps_for = decoding.Decoder._captured

    def counted(decoder: decoding.Decoder, *inputs: Any, **options: Any) -> decoding.FixedSteps:
        captured.append(decoder is spread._decode)
        return steps_for(decoder, *inputs, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding.Decoder, "_captured", counted)
        for step in range(3):
            batch = PromptBatch(step=step, examples=examples)
            own, other = whole.generate(batch), spread.generate(batch)
            width = min(own.tokens.shape[1], other.tokens.shape[1])
            same = (own.tokens[:, :width] == other.tokens[:, :width]).all(1)
            assert same.float().mean() > (0.99 if precision is torch.float32 else 0.5)
            with torch.no_grad():
                for model in models:
                    for parameter in model.trainable().values():
                        parameter.mul_(1.05)
    assert sum(captured) >= 3  # Anew in each phase.
    assert not spread._decode._steps


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_the_kernels_of_linear_attention_decode_what_the_reference_does(
    precision: torch.dtype, tmp_path: Path
) -> None:
    cpu = make_model(build_small_model(tmp_path / "model", linear_width=32))
    assert delta.implementation(torch.device("cuda"), learns=False) == "triton"
    model = VisionLanguageModel(cpu.network.cuda(), cpu.processor, precision=precision)
    settings = SamplingSettings(max_response_tokens=12)
    batch = PromptBatch(step=0, examples=make_examples(tmp_path, 3))
    steps: list[int] = []
    step = delta_step.take_step

    def counted(*inputs: Any) -> torch.Tensor:
        steps.append(1)
        return step(*inputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_step, "take_step", counted)
        fast = Sampler(model, full_view, settings).generate(batch)
    assert steps
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_step, "fits", lambda *_: False)
        slow = Sampler(model, full_view, settings).generate(batch)
    width = min(fast.tokens.shape[1], slow.tokens.shape[1])
    same = (fast.tokens[:, :width] == slow.tokens[:, :width]).all(1)
    is_exact = precision is torch.float32
    assert same.float().mean() > (0.99 if is_exact else 0.5)
    limit = 1e-3 if is_exact else 0.05
    torch.testing.assert_close(
        fast.logprobs[same][:, :width], slow.logprobs[same][:, :width], atol=limit, rtol=limit
    )


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_kernels_draw_in_a_graph_what_plain_operations_draw(
    precision: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = make_model(build_small_model(tmp_path / "model", linear_width=32))
    model = VisionLanguageModel(cpu.network.cuda(), cpu.processor, precision=precision)
    examples, settings = make_examples(tmp_path, 6), SamplingSettings(max_response_tokens=24)
    plain, with_kernels = (Sampler(model, full_view, settings) for _ in range(2))
    steps: list[int] = []
    fused = race.Race.fused

    def counted(*inputs: Any) -> torch.Tensor:
        steps.append(1)
        return fused(*inputs)

    monkeypatch.setattr(race.Race, "fused", counted)
    for step in range(3):
        drawn = []
        for sampler, has_triton in ((plain, False), (with_kernels, True)):
            monkeypatch.setattr(compiling, "has_triton", lambda has=has_triton: has)
            drawn.append(sampler.generate(PromptBatch(step=step, examples=examples)))
            assert bool(steps) == (step > 0 or has_triton)
        own, other = drawn
        width = min(own.tokens.shape[1], other.tokens.shape[1])
        same = (own.tokens[:, :width] == other.tokens[:, :width]).all(1)
        assert same.float().mean() > (0.99 if precision is torch.float32 else 0.5)
        torch.testing.assert_close(
            other.logprobs[same][:, :width], own.logprobs[same][:, :width], atol=0.05, rtol=0.05
        )
        with torch.no_grad():  # The graph must see weights that change in place.
            for parameter in model.trainable().values():
                parameter.mul_(1.05)
    assert with_kernels._decode._steps
    assert len(steps) < 24  # Captured, not called for each token.
