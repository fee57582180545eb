"""Greedy responses against transformers' own `generate`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from stage_fixtures import make_examples, make_model
from torch import Tensor

from bas_opd.data.images import open_image
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.rollout import Greedy, greedy
from bas_opd.types import Hooks, Prompt

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
    responses = Greedy(model, max_response_tokens=LIMIT, prompts_per_batch=size)(prompts)
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


QUESTIONS = ("What is it?", "What colour is the sign?", "Why is it?", "What colour is the sign?")


def about_two_pictures(model: VisionLanguageModel, folder: Path) -> list[Prompt]:
    """Four questions about each of two pictures, then one about a third."""
    pictures = [open_image(example.image) for example in make_examples(folder)]
    prompts = []
    for picture in pictures[:2]:
        first = model.processor.encode(picture, QUESTIONS[0])
        prompts += [model.processor.encode_again(first, question) for question in QUESTIONS]
    return [*prompts, model.processor.encode(pictures[2], QUESTIONS[0])]


def apart(prompts: list[Prompt]) -> list[Prompt]:
    """The same prompts, each with pixels of its own."""
    return [replace(each, pixel_values=each.pixel_values.clone()) for each in prompts]


@pytest.mark.parametrize("size", [1, 3, 100])
def test_questions_about_one_picture_share_it_and_have_the_same_answers(
    model: VisionLanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    prompts = about_two_pictures(model, tmp_path)
    alone = respond(model, apart(prompts), size)
    assert len({tuple(tokens.tolist()) for tokens in alone}) > 4
    patches: list[int] = []
    prefill = model.prefill
    monkeypatch.setattr(
        model,
        "prefill",
        lambda some: (patches.extend(len(each.pixel_values) for each in some), prefill(some))[1],
    )
    decoded: list[int] = []
    decode = greedy.Decoder.__call__
    monkeypatch.setattr(
        greedy.Decoder,
        "__call__",
        lambda self, prefix: (decoded.append(len(prefix.last_hidden)), decode(self, prefix))[1],
    )
    shared = respond(model, prompts, size)
    assert [tokens.tolist() for tokens in shared] == [tokens.tolist() for tokens in alone]
    assert decoded == {1: [1] * 9, 3: [3, 3, 3], 100: [9]}[size]
    assert sorted(patches) == sorted(len(prompts[place].pixel_values) for place in (0, 4, 8))


def test_a_question_before_its_picture_is_prefilled_whole(
    small_qwen35: Path, tmp_path: Path
) -> None:
    model = make_model(small_qwen35)
    prompts = [
        replace(each, input_ids=torch.cat([each.input_ids[-6:], each.input_ids]))
        for each in about_two_pictures(model, tmp_path)
    ]
    prompts[1].input_ids[0] += 1
    shared, alone = (respond(model, each, 3) for each in (prompts, apart(prompts)))
    assert [tokens.tolist() for tokens in shared] == [tokens.tolist() for tokens in alone]


def test_nothing_that_was_decoded_is_lost_where_a_poll_stops(
    small_qwen35: Path, tmp_path: Path
) -> None:
    model = make_model(small_qwen35)
    prompts = about_two_pictures(model, tmp_path)
    decoded, got = 0, 0

    def stop() -> None:
        if decoded > 3:
            raise KeyboardInterrupt

    logits = model.logits

    def counted(hidden: Tensor) -> Tensor:
        nonlocal decoded
        decoded += len(hidden)
        return logits(hidden)

    model.logits = counted
    answers = Greedy(model, max_response_tokens=1, prompts_per_batch=2, hooks=Hooks(poll=stop))
    responses = answers(prompts)
    with suppress(KeyboardInterrupt):
        for _ in responses:
            got += 1
    assert got == decoded < len(prompts)
