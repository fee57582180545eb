from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from bas_opd.data.finesearch import KINDS, VERSIONS, render, sample
from bas_opd.data.finesearch.assets import COLOURS, SIDE, catalogue
from bas_opd.evaluate.benchmarks import Scored
from bas_opd.evaluate.questions import Picture, Question
from bas_opd.model.base import LEARNT_KINDS
from bas_opd.model.loading import load_model
from bas_opd.model.processing import Processor
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.types import Prompt
from recipes.small_base.compose import Painter
from recipes.small_base.feed import COURSES, Scenes, scene_arrays
from recipes.small_base.judge import told, verdict
from recipes.small_base.network import CROPS, FULL, PATCH, Labels, Views, build, token_truth

CPU = torch.device("cpu")
WHOLE = (0, 0, SIDE, SIDE)
CROP = CROPS["finesearch"]


@pytest.fixture(scope="module", params=COURSES)
def version(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(version: str, tmp_path_factory: pytest.TempPathFactory) -> VisionLanguageModel:
    folder = build(tmp_path_factory.mktemp("base") / "model", seed=0, version=version)
    return VisionLanguageModel(load_model(str(folder), device=CPU), Processor.load(folder))


@pytest.fixture(scope="module")
def scenes(version: str, model: VisionLanguageModel) -> Scenes:
    return Scenes(model.processor, whole=2, crops=2, seed=1, version=version)


@pytest.fixture(scope="module")
def painter() -> Painter:
    return Painter(CPU, augment=False)


@pytest.mark.parametrize("kind", KINDS)
def test_the_fast_drawing_resembles_the_exact_one(painter: Painter, kind: str) -> None:
    one = sample("train", "large", 0, 1, kind)[0]
    exact = render(one.scene)
    for view, side in ((WHOLE, FULL), (one.box or (0, 0, 96, 96), CROP)):
        arrays = scene_arrays(one.scene, view)
        things, backdrop, box = (
            torch.from_numpy(arrays[name])[None] for name in ("things", "backdrop", "view")
        )
        fast = painter.paint(things, backdrop, box, side)[0].permute(1, 2, 0)
        cut = exact.crop(view).resize((side, side), Image.Resampling.BICUBIC)
        assert (fast - torch.from_numpy(np.asarray(cut) / 255)).abs().mean() < 0.03


@pytest.mark.parametrize("name", ["whole", "crops"])
def test_the_fixed_forward_pass_is_that_of_transformers(
    model: VisionLanguageModel, scenes: Scenes, painter: Painter, name: str
) -> None:
    side = FULL if name == "whole" else CROPS[scenes.version]
    blocks, length = scenes.course.questions, scenes.course.length
    batch = scenes.batch(0)
    things, backdrop, box = (batch[f"{name}.{array}"] for array in ("things", "backdrop", "view"))
    pixels = painter.paint(things, backdrop, box, side)
    views = Views(model.network, side, scenes.prefix, blocks, length)
    tokens, learnt = batch[f"{name}.tokens"].long(), batch[f"{name}.learnt"]
    with torch.no_grad():
        fast = views.texts(views.pictures(pixels), tokens)
        for row in range(len(tokens)):
            for block in range(blocks):
                first = int(learnt[row, block].nonzero()[0])
                count = int(learnt[row, block].sum())
                prompt = _prompt(model, scenes, pixels[row], tokens[row, block, :first], side)
                response = tokens[row, block, first : first + count]
                exact = model.logits(model.response_hidden([prompt], [0], [response]))
                mine = fast[row, block, first - 1 : first - 1 + count]
                torch.testing.assert_close(mine, exact, atol=2e-4, rtol=0)


def _prompt(
    model: VisionLanguageModel, scenes: Scenes, pixels: Tensor, opening: Tensor, side: int
) -> Prompt:
    """The prompt as the processor would make it from these pixels."""
    grid = side // PATCH
    half = grid // 2
    patches = (2 * pixels - 1).view(3, half, 2, PATCH, half, 2, PATCH)
    patches = patches.permute(1, 4, 2, 5, 0, 3, 6)[..., None, :, :]
    patches = patches.expand(*patches.shape[:5], 2, PATCH, PATCH)
    images = [model.processor.image_id] * half**2
    return Prompt(
        input_ids=torch.tensor([*scenes.prefix, *images, *opening.tolist()]),
        pixel_values=patches.reshape(grid * grid, -1),
        grid=torch.tensor([[1, grid, grid]]),
    )


def test_a_training_prompt_is_the_one_the_processor_makes(
    model: VisionLanguageModel, scenes: Scenes
) -> None:
    batch = scenes.batch(3)
    tokens, learnt = batch["whole.tokens"][0, 0], batch["whole.learnt"][0, 0]
    opening = tokens[: int(learnt.nonzero()[0])].tolist()
    question = model.processor.decode(opening).split("\n")[0].strip()
    question = question.removesuffix("assistant").strip()
    encoded = model.processor.encode(Image.new("RGB", (SIDE, SIDE)), question).input_ids.tolist()
    images = [model.processor.image_id] * (FULL // 16) ** 2
    assert encoded == [*scenes.prefix, *images, *opening]


def test_batches_depend_on_their_number_alone(scenes: Scenes) -> None:
    one, again, other = scenes.batch(5), scenes.batch(5), scenes.batch(6)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["whole.tokens"], other["whole.tokens"])


def test_only_pictures_of_the_training_split_are_fed(scenes: Scenes) -> None:
    listed = catalogue()
    for number in range(20):
        batch = scenes.batch(number)
        for view in ("whole", "crops"):
            things = batch[f"{view}.things"].flatten(0, 1)
            objects = things[things[:, 0] == 0, 2].tolist()
            assert {listed.pictures[index].split for index in objects} == {"train"}
            backgrounds = batch[f"{view}.backdrop"][:, 0].tolist()
            assert {listed.backgrounds[index].split for index in backgrounds} == {"train"}


def test_image_tokens_are_labelled_by_what_stands_at_their_middle() -> None:
    one = sample("train", "large", 0, 0, "number")[0]
    arrays = scene_arrays(one.scene, WHOLE)
    things, view = (torch.from_numpy(arrays[name])[None] for name in ("things", "view"))
    category, colour, tens, ones = token_truth(things, view, 10)
    sign = one.scene.placed[0]
    x, y = sign.x + sign.size // 2, sign.y + sign.size // 2
    token = y * 10 // SIDE * 10 + x * 10 // SIDE
    assert int(category[0, token]) == len(catalogue().categories)
    assert list(COLOURS)[int(colour[0, token])] == sign.thing.colour
    assert f"{int(tens[0, token])}{int(ones[0, token])}" == sign.thing.name
    nothing = len(catalogue().categories) + 2
    assert (category == nothing).any()
    assert ((tens == -100) == (category != len(catalogue().categories))).all()
    assert Labels(8).loss(torch.randn(1, 100, 8), things, view).isfinite()


def test_every_word_is_one_token(version: str, model: VisionLanguageModel) -> None:
    tokenizer = model.processor.tokenizer
    for kind in VERSIONS[version].kinds:
        for index in range(500, 530):
            one = sample("train", "small", 0, index, kind, version=version)[0]
            for text in (one.question.text, *one.question.responses):
                pieces = [tokenizer.decode([token]) for token in tokenizer.encode(text)]
                assert all(
                    piece.strip().isalpha() or piece.strip() in ".,?" or piece.strip().isdigit()
                    for piece in pieces
                )
                words = [piece.strip() for piece in pieces if piece.strip().isalpha()]
                assert words == [word for word in _words(text) if word.isalpha()]


def _words(text: str) -> list[str]:
    return text.translate(str.maketrans("", "", ".,?")).split()


def test_the_model_is_small_enough_to_ship(model: VisionLanguageModel, tmp_path: Path) -> None:
    assert 2 * sum(parameter.numel() for parameter in model.network.parameters()) < 15e6


def test_crops_around_small_things_have_the_side_that_the_base_was_trained_on(
    version: str, model: VisionLanguageModel
) -> None:
    if version == "finesearch":
        pytest.skip("Some of its crops are rounded up to the next size.")
    tokens = (CROPS[version] // 16) ** 2
    for kind in VERSIONS[version].kinds:
        for index in range(12):
            one = sample("val", "small", 0, index, kind, version=version)[0]
            if one.box is not None:
                crop = Image.new("RGB", (one.box[2] - one.box[0], one.box[3] - one.box[1]))
                prompt = model.processor.encode(crop, one.question.text)
                assert int((prompt.input_ids == model.processor.image_id).sum()) == tokens


def test_a_verdict_counts_what_was_judged_and_averages_only_what_was_learnt() -> None:
    graded = [
        Scored(
            id=f"{kind}-{place}",
            outcome="correct" if right else "wrong",
            groups={"kind": kind},
        )
        for kind in KINDS
        for place, right in enumerate([kind != "position", kind == "count", kind == "count"])
    ]
    found = verdict(graded[:-1])  # one had no crop
    assert found["n"] == 3 * len(KINDS) - 1
    assert [found[kind] for kind in ("position", "count", "digit", "pair")] == [0, 1, 0.333, 0.5]
    others = len(LEARNT_KINDS) - 2
    assert found["mean of learnt kinds"] == round((1 + 0.5 + others / 3) / len(LEARNT_KINDS), 4)


def test_a_told_question_has_its_answer_in_the_prompt_and_is_graded_as_before() -> None:
    picture = Picture(read=bytes, name="a.png")
    plain = Question(id="a", picture=picture, prompt="Which?", form="short", reference="red")
    (changed,) = told([plain], "{question} It is {answer}.")
    assert changed == replace(plain, prompt="Which? It is red.")
