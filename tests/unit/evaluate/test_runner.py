"""Questions put to a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from stage_fixtures import make_examples, make_model

from bas_opd.data.images import open_crop, open_image
from bas_opd.errors import PreemptionError
from bas_opd.evaluate.runner import evaluate, pose
from bas_opd.model.vlm import VisionLanguageModel


@pytest.fixture(scope="module")
def model(small_qwen35: Path) -> VisionLanguageModel:
    return make_model(small_qwen35)


def test_answers_stand_in_the_order_of_the_examples(
    model: VisionLanguageModel, tmp_path: Path
) -> None:
    examples = make_examples(tmp_path)
    counts: list[int] = []
    forward = evaluate(model, examples, prompts_per_batch=2, on_done=counts.append)
    backward = evaluate(model, examples[::-1], prompts_per_batch=3)
    assert [each.id for each in forward] == [example.id for example in examples]
    assert forward == backward[::-1]
    assert len({each.output for each in forward}) > 1
    assert counts == [1, 2, 3, 4]


def test_what_a_model_says_is_graded_against_the_examples_answer(
    model: VisionLanguageModel, tmp_path: Path
) -> None:
    examples = make_examples(tmp_path)
    told = [replace(each, answer="never said") for each in examples]
    assert not any(each.is_correct for each in evaluate(model, told))
    said = evaluate(model, examples, max_response_tokens=24)
    last_words = [
        each.output.split()[-1].strip("!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~") for each in said
    ]
    told = [replace(e, answer=word, kind="k") for e, word in zip(examples, last_words, strict=True)]
    right = evaluate(model, told, max_response_tokens=24)
    assert [each.is_correct for each in right if each.answer] == [True] * sum(map(bool, last_words))
    assert {each.kind for each in right} == {"k"}
    assert any(last_words)


def test_the_crop_is_what_is_seen_and_rows_without_one_are_left_out(
    model: VisionLanguageModel, tmp_path: Path
) -> None:
    examples = make_examples(tmp_path)
    processor = model.processor
    full, crops = (pose(processor, examples, view=view) for view in ("full", "crop"))
    assert [each.example.id for each in full] == ["e0", "e1", "e2", "e3"]
    assert [each.example.id for each in crops] == ["e0", "e1", "e2"]
    expected = processor.encode(open_crop(examples[1]), examples[1].question)
    assert crops[1].prompt.pixel_values.equal(expected.pixel_values)
    expected = processor.encode(open_image(examples[1].image), examples[1].question)
    assert full[1].prompt.pixel_values.equal(expected.pixel_values)
    assert [each.id for each in evaluate(model, examples, view="crop")] == ["e0", "e1", "e2"]


def test_an_evaluation_can_be_stopped_between_answers(
    model: VisionLanguageModel, tmp_path: Path
) -> None:
    def stop(done: int) -> None:
        raise PreemptionError("SIGTERM")

    with pytest.raises(PreemptionError):
        evaluate(model, make_examples(tmp_path), on_done=stop)
