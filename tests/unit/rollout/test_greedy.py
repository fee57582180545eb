"""Greedy responses against transformers' own `generate`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from stage_fixtures import make_examples, make_model
from torch import Tensor

from bas_opd.data.images import open_image
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.rollout import greedy_responses
from bas_opd.types import Prompt

FAMILIES = ["small_qwen35", "small_qwen3vl", "small_qwen25vl"]
LIMIT = 12


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> VisionLanguageModel:
    model = make_model(request.getfixturevalue(request.param))
    model.processor = replace(model.processor, eos_ids=(0,))
    return model


def prompts_of(model: VisionLanguageModel, folder: Path) -> list[Prompt]:
    """Prompts of several lengths, not in their order."""
    examples = reversed(make_examples(folder))
    return [model.processor.encode(open_image(e.image), e.question) for e in examples]


def respond(model: VisionLanguageModel, prompts: list[Prompt], size: int) -> list[Tensor]:
    responses = greedy_responses(model, prompts, max_response_tokens=LIMIT, prompts_per_batch=size)
    return [tokens for _, tokens in sorted(responses, key=lambda pair: pair[0])]


def test_a_greedy_response_is_that_of_generate(model: VisionLanguageModel, tmp_path: Path) -> None:
    prompts = prompts_of(model, tmp_path)
    endless = respond(model, prompts, 3)
    # What two of them say in the middle ends them there, and perhaps others elsewhere.
    ends = (int(endless[0][4]), int(endless[1][7]))
    model.processor = replace(model.processor, eos_ids=ends)
    ours = respond(model, prompts, 3)
    assert len({len(tokens) for tokens in ours}) > 1
    for prompt, tokens in zip(prompts, ours, strict=True):
        ids = prompt.input_ids[None]
        produced = model.network.generate(  # type: ignore[operator]
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=prompt.pixel_values,
            image_grid_thw=prompt.grid,
            mm_token_type_ids=model.processor.mm_token_type_ids(ids),
            do_sample=False,
            max_new_tokens=LIMIT,
            eos_token_id=list(model.processor.eos_ids),
            suppress_tokens=list(model.processor.suppressed_ids),
        )
        assert produced[0, prompt.length :].tolist() == tokens.tolist()


@pytest.mark.parametrize("size", [1, 2, 100])
def test_how_questions_are_batched_changes_no_answer(
    small_qwen35: Path, tmp_path: Path, size: int
) -> None:
    model = make_model(small_qwen35)
    prompts = prompts_of(model, tmp_path)
    whole, cut = respond(model, prompts, 3), respond(model, prompts, size)
    assert [tokens.tolist() for tokens in whole] == [tokens.tolist() for tokens in cut]


def test_a_vision_token_is_never_an_answer(small_qwen35: Path, tmp_path: Path) -> None:
    model = make_model(small_qwen35)
    prompts = prompts_of(model, tmp_path)
    said = torch.cat(respond(model, prompts, 4)).unique()
    model.processor = replace(model.processor, suppressed_ids=tuple(said.tolist()))
    assert not torch.isin(torch.cat(respond(model, prompts, 4)), said).any()


def test_answers_need_no_gradient(small_qwen35: Path, tmp_path: Path) -> None:
    model = make_model(small_qwen35)
    seen: list[bool] = []
    head = model.logits
    model.logits = lambda hidden: (seen.append(hidden.requires_grad), head(hidden))[1]
    respond(model, prompts_of(model, tmp_path)[:1], 1)
    assert seen
    assert not any(seen)
