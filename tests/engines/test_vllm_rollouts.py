"""vLLM as the engine of rollouts: it draws and measures what the sampler does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_fixtures import SETTINGS, Beside
from small_models import build_small_model
from stage_fixtures import make_examples, make_model
from torch import Tensor

from bas_opd.data.views import full_view
from bas_opd.errors import ModelError, PreemptionError
from bas_opd.model.loading import LoraSettings
from bas_opd.rollout import vllm_engine
from bas_opd.rollout.vllm_engine import VllmEngine
from bas_opd.types import Hooks, PromptBatch, Rollouts

BLOCK = vllm_engine.ON_CPU["block_size"]
"""Tokens of a block of its cache."""


MODELS: dict[str, dict[str, Any]] = {
    "tied": {"family": "qwen3_vl", "tied": True},
    "untied": {"family": "qwen3_vl", "tied": False},
    # vLLM computes no heads of 16 dimensions on a CPU.
    "qwen2_5_vl": {"family": "qwen2_5_vl", "hidden": 128},
}


@pytest.fixture(scope="module", params=list(MODELS))
def beside(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Beside]:
    folder = build_small_model(tmp_path_factory.mktemp("model"), **MODELS[request.param])
    both = Beside(make_model(folder), folder, SETTINGS)
    yield both
    both.engine.close()


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> PromptBatch:
    return PromptBatch(step=3, examples=make_examples(tmp_path_factory.mktemp("pictures"), 8))


def assert_same(drawn: Rollouts, expected: Rollouts) -> None:
    """Every token is the same; log-probs and entropies are within rounding of fp32."""
    assert drawn.entropies is not None
    assert expected.entropies is not None
    assert torch.equal(drawn.lengths, expected.lengths)
    assert torch.equal(drawn.tokens, expected.tokens)
    torch.testing.assert_close(drawn.logprobs, expected.logprobs, atol=1e-5, rtol=0)
    torch.testing.assert_close(drawn.entropies, expected.entropies, atol=1e-5, rtol=0)


def test_tokens_logprobs_and_entropies_are_the_samplers(beside: Beside, batch: PromptBatch) -> None:
    beside.sync()
    drawn = beside.engine.generate(batch)
    assert_same(drawn, beside.sampler.generate(batch))
    assert len(drawn) == 32
    assert drawn.lengths.unique().numel() > 3  # Some rows end early, some do not.
    assert drawn.engine is not None
    assert drawn.engine.version == beside.version
    assert drawn.engine.rows == (0, 8, 16, 24)
    assert 0 < drawn.engine.logprob_gap < 1e-5


def test_weights_are_synchronised_step_after_step(beside: Beside, batch: PromptBatch) -> None:
    beside.sync()
    seen = []
    for step in range(3):
        now = replace(batch, step=step)
        beside.train()
        beside.sync()
        drawn = beside.engine.generate(now)
        assert_same(drawn, beside.sampler.generate(now))
        seen.append(drawn.engine and drawn.engine.version)
    assert seen == [beside.version - 2, beside.version - 1, beside.version]


def test_a_version_is_loaded_once(
    beside: Beside, batch: PromptBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside.sync()
    monkeypatch.setattr(vllm_engine, "plain_weights", None)
    beside.engine.load_weights(beside.model.trainable(), beside.version)
    beside.engine.generate(replace(batch, round=1))


def test_weights_that_were_not_loaded_stop_the_run(beside: Beside, batch: PromptBatch) -> None:
    beside.sync()
    beside.train()
    with pytest.raises(
        ModelError, match=r"Step 3: the log-probs of vLLM are .* from the trainer's"
    ):
        beside.engine.generate(batch)


@pytest.mark.parametrize(
    ("old", "named"),
    [
        ("visual", "visual."),
        ("embed_tokens", "embed_tokens.weight"),
        ("layers.3.mlp.down_proj", "layers.3.mlp.down_proj.weight"),
        ("layers.2.mlp.up_proj", "layers.2.mlp.gate_up_proj.weight"),
        ("layers.1.self_attn.k_proj.weight", "layers.1.self_attn.qkv_proj.weight"),
    ],
)
def test_one_weight_that_stays_old_stops_the_run(
    old: str, named: str, beside: Beside, batch: PromptBatch
) -> None:
    """By its values, and in float32 by the log-probs too."""
    beside.sync()
    beside.train()
    with beside.keeping(old):
        with pytest.raises(ModelError, match=rf"student's weights: [\w.]*{named}"):
            beside.sync()
        beside.sync_unchecked()
    with pytest.raises(ModelError, match="are not those of the student"):
        beside.engine.generate(batch)


@pytest.mark.parametrize("lost", ["visual", "layers.3.mlp.down_proj", "layers.2.mlp.up_proj"])
def test_one_weight_that_vllm_leaves_out_stops_the_run(lost: str, beside: Beside) -> None:
    beside.sync()
    beside.train()
    with beside.losing(lost), pytest.raises(ModelError, match="is not what was sent"):
        beside.sync()


def test_a_weight_that_is_not_sent_stops_the_run(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything, lost = vllm_engine.plain_weights, "layers.3.mlp.down_proj.weight"

    def incomplete(network: Any, named: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        return ((name, weight) for name, weight in everything(network, named) if lost not in name)

    monkeypatch.setattr(vllm_engine, "plain_weights", incomplete)
    with pytest.raises(ModelError, match=lost):
        beside.sync()


def test_a_head_that_keeps_its_old_weights_stops_the_run(
    beside: Beside, batch: PromptBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tied head computes with a copy on a CPU, which loading weights does not replace."""
    beside.sync()
    beside.train()
    monkeypatch.setattr(vllm_engine, "_pack_heads", lambda _: None)
    if "lm_head.weight" not in beside.model.trainable():
        with pytest.raises(ModelError, match=r"weights: language_model\.lm_head\.weight is not"):
            beside.sync()
        beside.sync_unchecked()
        with pytest.raises(ModelError, match="are not those of the student"):
            beside.engine.generate(batch)
    else:
        beside.sync()
        beside.engine.generate(batch)


def test_a_prompt_and_its_image_are_computed_once(beside: Beside, batch: PromptBatch) -> None:
    beside.sync()
    seen: Counter[str] = Counter()

    def watch(model: Any) -> list[Any]:
        def patches(_: Any, arguments: Any, named: Any) -> None:
            seen["patches"] += len(arguments[0] if arguments else named["x"])

        def tokens(_: Any, arguments: Any, named: Any) -> None:
            seen["tokens"] += (named.get("positions", arguments and arguments[0])).shape[-1]

        layer = model.language_model.model.layers[0]
        return [
            model.visual.register_forward_pre_hook(patches, with_kwargs=True),
            layer.register_forward_pre_hook(tokens, with_kwargs=True),
        ]

    (hooks,) = beside.engine.engine.apply_model(watch)
    drawn = beside.engine.generate(batch)
    for hook in hooks:
        hook.remove()
    encoded = [beside.model.processor.encode(*full_view(each)) for each in batch.examples]
    assert seen["patches"] == sum(len(prompt.pixel_values) for prompt in encoded)
    # The last block of a prompt is not full, so each of its rows computes that anew.
    each = SETTINGS.per_prompt
    computed = sum(
        each * prompt.length - (each - 1) * BLOCK * ((prompt.length - 1) // BLOCK)
        for prompt in encoded
    )
    assert seen["tokens"] == computed + int((drawn.lengths - 1).sum())


def test_between_steps_it_sleeps_and_wakes_for_new_weights_and_then_for_its_cache(
    beside: Beside,
    batch: PromptBatch,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """On a CPU vLLM frees nothing, so this shows that it is called as it wants, and when."""
    beside.sync()
    engine, calls = beside.engine.engine, list[Any]()
    request.addfinalizer(engine.wake_up)  # Asleep, it would keep later tests waiting.
    monkeypatch.setattr(VllmEngine, "_sleeps", True)
    for name in ("sleep", "wake_up", "collective_rpc", "reset_prefix_cache"):
        original = getattr(engine, name)

        def call(
            *arguments: Any, _name: str = name, _original: Any = original, **named: Any
        ) -> Any:
            calls.append((_name, *arguments))
            return _original(*arguments, **named)

        monkeypatch.setattr(engine, name, call)
    for _ in range(2):
        beside.train()
        beside.sync()
        assert_same(beside.engine.generate(batch), beside.sampler.generate(batch))
        assert calls == [
            ("wake_up", ["weights"]),
            ("collective_rpc", "reload_weights"),
            ("collective_rpc", "apply_model"),
            ("collective_rpc", "apply_model"),
            ("wake_up", ["kv_cache"]),
            ("reset_prefix_cache",),
            ("sleep", 2),
        ]
        calls.clear()
    # What sleeps has lost its weights: the same version is loaded again.
    beside.engine.load_weights(beside.model.trainable(), beside.version)
    assert ("collective_rpc", "reload_weights") in calls


def test_an_engine_that_stays_asleep_is_a_sentence(
    beside: Beside,
    batch: PromptBatch,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    beside.sync()
    engine = beside.engine.engine
    request.addfinalizer(engine.wake_up)
    monkeypatch.setattr(VllmEngine, "_sleeps", True)
    beside.engine.generate(batch)
    wake = engine.wake_up
    monkeypatch.setattr(engine, "wake_up", lambda tags: tags == ["weights"] and wake(tags))
    with pytest.raises(ModelError, match="vLLM did not wake up"):
        beside.sync()


def test_a_stop_between_tokens_leaves_the_engine_usable(beside: Beside, batch: PromptBatch) -> None:
    beside.sync()
    polls = 0

    def poll() -> None:
        nonlocal polls
        polls += 1
        if polls == 4:
            raise PreemptionError("SIGTERM")

    beside.engine.hooks = Hooks(poll=poll)
    with pytest.raises(PreemptionError):
        beside.engine.generate(batch)
    assert_same(beside.engine.generate(batch), beside.sampler.generate(batch))


def test_a_temperature_and_a_nucleus_are_the_samplers_too(
    tmp_path: Path, batch: PromptBatch
) -> None:
    folder = build_small_model(tmp_path / "model", family="qwen3_vl")
    settings = replace(SETTINGS, temperature=0.7, top_p=0.9)
    both = Beside(make_model(folder), folder, settings)
    both.sync()
    assert_same(both.engine.generate(batch), both.sampler.generate(batch))
    both.engine.close()


def test_adapters_are_merged_into_what_it_loads(tmp_path: Path, batch: PromptBatch) -> None:
    folder = build_small_model(tmp_path / "model", family="qwen3_vl")
    both = Beside(make_model(folder, lora=LoraSettings(rank=4)), folder, SETTINGS)
    both.train()
    both.sync()
    assert_same(both.engine.generate(batch), both.sampler.generate(batch))
    both.engine.close()


def test_in_bfloat16_most_rows_are_the_samplers(tmp_path: Path, batch: PromptBatch) -> None:
    folder = build_small_model(tmp_path / "model", family="qwen3_vl")
    both = Beside(make_model(folder, precision=torch.bfloat16), folder, SETTINGS)
    both.sync()
    drawn, ours = both.engine.generate(batch), both.sampler.generate(batch)
    both.engine.close()
    same = [
        torch.equal(one[:n], other[:n])
        for one, other, n in zip(drawn.tokens, ours.tokens, drawn.lengths.tolist(), strict=True)
    ]
    assert sum(same) >= 0.75 * len(same)
    assert drawn.engine is not None
    assert 1e-4 < drawn.engine.logprob_gap < 0.05


def test_rows_that_vllm_puts_off_are_the_samplers(
    small_qwen3vl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cache has room for a few long rows; it computes the others anew when there is."""
    settings = replace(SETTINGS, max_response_tokens=120)
    both = Beside(make_model(small_qwen3vl), small_qwen3vl, settings, cache_gib=0.0011)
    both.sync()
    scheduler = both.engine.engine.engine_core.engine_core.scheduler
    put_off = []
    preempt = scheduler._preempt_request

    def watched(request: Any, *arguments: Any, **named: Any) -> Any:
        put_off.append(request)
        return preempt(request, *arguments, **named)

    monkeypatch.setattr(scheduler, "_preempt_request", watched)
    batch = PromptBatch(step=3, examples=make_examples(tmp_path, 8))
    try:
        assert_same(both.engine.generate(batch), both.sampler.generate(batch))
    finally:
        both.engine.close()
    assert put_off
