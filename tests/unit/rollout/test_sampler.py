"""The sampler against transformers' own scoring and its own `generate`."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stage_fixtures import draw, make_examples, make_model
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from bas_opd.data.images import open_image
from bas_opd.data.views import full_view
from bas_opd.errors import DataError
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.rollout import Sampler, SamplingSettings
from bas_opd.rollout.draws import race_noise, row_keys
from bas_opd.types import Hooks, PromptBatch, Rollouts

FAMILIES = ["small_qwen35", "small_qwen3vl", "small_qwen25vl"]


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> VisionLanguageModel:
    return make_model(request.getfixturevalue(request.param))


def whole_logits(model: VisionLanguageModel, rollouts: Rollouts, row: int) -> Tensor:
    """Score one row by itself, prompt and response in one plain forward pass."""
    prompt = rollouts.prompts[rollouts.prompt_of(row)]
    response = rollouts.tokens[row, : int(rollouts.lengths[row])]
    ids = torch.cat([prompt.input_ids, response])[None]
    with torch.no_grad():
        logits = model.network(
            input_ids=ids,
            pixel_values=prompt.pixel_values,
            image_grid_thw=prompt.grid,
            mm_token_type_ids=model.processor.mm_token_type_ids(ids),
        ).logits[0]
    return logits[prompt.length - 1 : -1]


def sampling_logprobs(model: VisionLanguageModel, logits: Tensor) -> Tensor:
    logits = logits.clone()
    logits[:, list(model.processor.suppressed_ids)] = -torch.inf
    return logits.log_softmax(-1)


def test_logprobs_and_entropies_equal_a_rescoring_pass(
    model: VisionLanguageModel, tmp_path: Path
) -> None:
    rollouts = draw(model, make_examples(tmp_path))
    assert rollouts.entropies is not None
    assert rollouts.lengths.min() >= 1
    for row in range(len(rollouts)):
        length = int(rollouts.lengths[row])
        logprobs = sampling_logprobs(model, whole_logits(model, rollouts, row))
        chosen = logprobs.gather(-1, rollouts.tokens[row, :length, None])[:, 0]
        torch.testing.assert_close(rollouts.logprobs[row, :length], chosen, atol=1e-5, rtol=1e-5)
        entropy = torch.distributions.Categorical(logits=logprobs).entropy()
        torch.testing.assert_close(rollouts.entropies[row, :length], entropy, atol=1e-5, rtol=1e-5)


class SameNoise(LogitsProcessor):
    """Turns greedy `generate` into our draw: adds the noise of one row's address."""

    def __init__(self, model: VisionLanguageModel, key: Tensor, prompt_length: int) -> None:
        self.model, self.key, self.prompt_length = model, key, prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Any:
        position = torch.tensor([input_ids.shape[1] - self.prompt_length])
        logprobs = sampling_logprobs(self.model, scores.float())
        return logprobs + race_noise(self.key, position, scores.shape[-1])


def test_a_repeated_cache_samples_what_generate_samples_without_it(
    model: VisionLanguageModel, tmp_path: Path
) -> None:
    examples = make_examples(tmp_path)
    rollouts = draw(model, examples, step=3, per_prompt=2)
    for row in range(len(rollouts)):
        number, rollout = divmod(row, 2)
        example = examples[number]
        prompt = model.processor.encode(open_image(example.image), example.question)
        key = row_keys(42, 3, torch.tensor([number]), torch.tensor([rollout]))
        ids = prompt.input_ids[None]
        produced = model.network.generate(  # type: ignore[operator]
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=prompt.pixel_values,
            image_grid_thw=prompt.grid,
            mm_token_type_ids=model.processor.mm_token_type_ids(ids),
            do_sample=False,
            max_new_tokens=9,
            eos_token_id=list(model.processor.eos_ids),
            logits_processor=LogitsProcessorList([SameNoise(model, key, prompt.length)]),
        )
        ours = rollouts.tokens[row, : int(rollouts.lengths[row])].tolist()
        assert produced[0, prompt.length :].tolist() == ours


@pytest.mark.parametrize("prompts_per_batch", [1, 2, 3])
def test_how_the_batch_is_cut_changes_no_token(
    model: VisionLanguageModel, tmp_path: Path, prompts_per_batch: int
) -> None:
    settings = SamplingSettings(per_prompt=4, max_response_tokens=12)
    batch = PromptBatch(step=0, examples=make_examples(tmp_path))
    whole = Sampler(model, full_view, settings).generate(batch)
    cut = Sampler(
        model, full_view, replace(settings, prompts_per_batch=prompts_per_batch)
    ).generate(batch)
    assert torch.equal(whole.tokens, cut.tokens)
    assert torch.equal(whole.lengths, cut.lengths)
    torch.testing.assert_close(whole.logprobs, cut.logprobs, atol=1e-5, rtol=1e-5)


def test_a_batch_of_few_prompts_limits_no_later_one(
    model: VisionLanguageModel, tmp_path: Path
) -> None:
    sampler = Sampler(model, full_view, SamplingSettings(per_prompt=2, max_response_tokens=3))
    before = sampler.prompts_per_batch
    examples = make_examples(tmp_path)
    for few in (examples[:1], ()):
        rollouts = sampler.generate(PromptBatch(step=0, examples=few))
        assert len(rollouts) == 2 * len(few)
    assert sampler.prompts_per_batch == before


@pytest.fixture
def qwen35(small_qwen35: Path) -> VisionLanguageModel:
    return make_model(small_qwen35)


def test_rows_that_end_leave_and_the_others_stay_as_they_were(
    qwen35: VisionLanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many end tokens, rows end at all lengths; without any, none does."""
    examples = make_examples(tmp_path)
    never = replace(qwen35.processor, eos_ids=(0,))
    often = replace(qwen35.processor, eos_ids=tuple(range(0, 300, 7)))
    qwen35.processor = never
    whole = draw(qwen35, examples, per_prompt=8, tokens=20)
    qwen35.processor = often
    seen: list[int] = []
    extend = qwen35.extend
    monkeypatch.setattr(
        qwen35, "extend", lambda p, tokens: (seen.append(len(tokens)), extend(p, tokens))[1]
    )
    ending = draw(qwen35, examples, per_prompt=8, tokens=20)
    assert len(set(ending.lengths.tolist())) > 4
    assert ending.entropies is not None
    assert not ending.entropies[~ending.mask].any()
    assert not ending.logprobs[~ending.mask].any()
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] < 16
    for row, length in enumerate(ending.lengths.tolist()):
        assert torch.equal(ending.tokens[row, :length], whole.tokens[row, :length])
        ended = torch.isin(ending.tokens[row, :length], torch.tensor(often.eos_ids))
        assert not ended[:-1].any()
        assert ended[-1] or length == 20


def test_a_vision_token_is_never_drawn_and_takes_no_probability(
    qwen35: VisionLanguageModel, tmp_path: Path
) -> None:
    most = tuple(range(20, 300))
    qwen35.processor = replace(qwen35.processor, suppressed_ids=most)
    rollouts = draw(qwen35, make_examples(tmp_path), tokens=20)
    drawn = rollouts.tokens[rollouts.mask]
    assert not torch.isin(drawn, torch.tensor(most)).any()
    assert rollouts.entropies is not None
    left = qwen35.head(torch.zeros(1, 64)).shape[-1] - len(most)
    assert rollouts.entropies.max() <= math.log(left) + 1e-5


def test_the_nucleus_keeps_the_likeliest_and_is_what_the_logprobs_speak_of(
    qwen35: VisionLanguageModel, tmp_path: Path
) -> None:
    settings = SamplingSettings(per_prompt=4, max_response_tokens=6, top_p=0.3, temperature=0.7)
    rollouts = Sampler(qwen35, full_view, settings).generate(
        PromptBatch(step=0, examples=make_examples(tmp_path))
    )
    row, length = 0, int(rollouts.lengths[0])
    logprobs = sampling_logprobs(qwen35, whole_logits(qwen35, rollouts, row) / 0.7)
    for t in range(length):
        ranked = logprobs[t].exp().sort(descending=True)
        size = int((ranked.values.cumsum(0) < 0.3).sum()) + 1
        kept = ranked.indices[:size].tolist()
        assert int(rollouts.tokens[row, t]) in kept
        expected = logprobs[t, rollouts.tokens[row, t]] - ranked.values[:size].sum().log()
        assert rollouts.logprobs[row, t].item() == pytest.approx(expected.item(), abs=1e-4)


def test_sampling_leaves_the_global_generator_alone(
    qwen35: VisionLanguageModel, tmp_path: Path
) -> None:
    before = torch.get_rng_state()
    draw(qwen35, make_examples(tmp_path), tokens=2)
    assert torch.equal(before, torch.get_rng_state())


def test_a_prompt_that_is_too_long_is_named_with_what_to_do(
    qwen35: VisionLanguageModel, tmp_path: Path
) -> None:
    sampler = Sampler(qwen35, full_view, SamplingSettings(max_prompt_tokens=10))
    with pytest.raises(DataError, match=r"'e0'.*tokens.*at most 10.*--model"):
        sampler.generate(PromptBatch(step=0, examples=make_examples(tmp_path)))


def test_memory_that_runs_out_in_a_prefill_frees_the_caches_of_the_prompts_before(
    model: VisionLanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = PromptBatch(step=3, examples=make_examples(tmp_path))
    settings = SamplingSettings(per_prompt=2, max_response_tokens=6, prompts_per_batch=2)

    told: list[str] = []

    def sampler() -> Sampler:
        made = Sampler(model, full_view, settings, Hooks(notice=told.append))
        made.use_graphs = True
        return made

    expected, tried = sampler().generate(batch), sampler()
    prefill = model.prefill
    seen: list[bool] = []

    def failing(prompts: Any) -> Any:
        seen.append(bool(tried._decode._steps))
        if seen[-1]:
            raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB.")
        return prefill(prompts)

    monkeypatch.setattr(model, "prefill", failing)
    found = tried.generate(batch)
    assert seen == [False, True, False]
    assert tried.prompts_per_batch == 2
    assert [text.split(".")[0] for text in told] == [
        "A prefill had no room beside the caches of decoding"
    ]
    assert found.tokens.equal(expected.tokens)
    assert found.logprobs.equal(expected.logprobs)
