from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from PIL import Image
from small_models import build_small_model
from torch import Tensor
from transformers import AutoModelForImageTextToText, AutoTokenizer

from bas_opd.errors import ModelError
from bas_opd.model.family import Family
from bas_opd.model.processing import Processor


@pytest.fixture(params=["small_qwen35", "small_qwen3vl", "small_qwen25vl"])
def folder(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


def reload(folder: Path) -> Any:
    return AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()


def inputs(folder: Path, picture: Image.Image) -> dict[str, Tensor]:
    processor = Processor.load(folder)
    prompt = processor.encode(picture, "What is the color of the cup?")
    ids = prompt.input_ids[None]
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": prompt.pixel_values,
        "image_grid_thw": prompt.grid,
        "mm_token_type_ids": processor.mm_token_type_ids(ids),
    }


def test_it_is_small(folder: Path) -> None:
    parameters = sum(parameter.numel() for parameter in reload(folder).parameters())
    assert 50_000 < parameters < 1_200_000


@torch.no_grad()
def test_it_reloads_to_the_same_logits(folder: Path) -> None:
    batch = inputs(folder, Image.linear_gradient("L").convert("RGB"))
    first, again = reload(folder)(**batch).logits, reload(folder)(**batch).logits
    assert first.std() > 0.5
    assert torch.equal(first, again)


@torch.no_grad()
def test_the_next_token_depends_on_the_image(folder: Path) -> None:
    model = reload(folder)
    dark = model(**inputs(folder, Image.new("RGB", (96, 64), "black"))).logits[0, -1]
    light = model(**inputs(folder, Image.new("RGB", (96, 64), "white"))).logits[0, -1]
    assert (dark - light).abs().max() > 0.05


@torch.no_grad()
def test_it_generates_after_images_of_every_shape(folder: Path) -> None:
    model = reload(folder)
    for size in ((64, 64), (256, 96), (33, 250)):
        batch = inputs(folder, Image.new("RGB", size, "red"))
        tokens = model.generate(**batch, max_new_tokens=5, min_new_tokens=5)
        assert tokens.shape[1] == batch["input_ids"].shape[1] + 5


@torch.no_grad()
def test_linear_attention_remembers_more_than_the_last_tokens(small_qwen35: Path) -> None:
    # With full attention and the short convolution out of the way, only the recurrent state can
    # carry the first token to the last position.
    model = reload(small_qwen35)
    full = model.model.language_model.layers[3].self_attn
    torch.nn.init.zeros_(full.o_proj.weight)
    ids = torch.full((2, 40), 65)
    ids[1, 0] = 66
    logits = model(input_ids=ids).logits[:, -1]
    assert (logits[0] - logits[1]).abs().max() > 1e-4


def test_qwen35_layers_are_three_linear_to_one_full(small_qwen35: Path) -> None:
    kinds = reload(small_qwen35).config.text_config.layer_types
    assert kinds == ["linear_attention"] * 3 + ["full_attention"]


def test_it_is_a_function_of_its_seed_alone(tmp_path: Path) -> None:
    weights = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.rand(len(weights) + 1)
        build_small_model(tmp_path / name, seed=seed)
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.parametrize("family", get_args(Family))
def test_building_leaves_the_global_generator_alone(tmp_path: Path, family: Family) -> None:
    before = torch.get_rng_state()
    build_small_model(tmp_path, family=family)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("tied", [True, False])
def test_the_head_is_tied_when_asked(tmp_path: Path, tied: bool) -> None:
    model = reload(build_small_model(tmp_path, tied=tied))
    assert (model.lm_head.weight is model.get_input_embeddings().weight) == tied


def test_size_follows_the_arguments(tmp_path: Path) -> None:
    config = reload(build_small_model(tmp_path, hidden=96, layers=8)).config.text_config
    assert (config.hidden_size, config.num_hidden_layers) == (96, 8)


def test_a_qwen35_without_its_full_attention_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="multiple of 4"):
        build_small_model(tmp_path, layers=3)


def test_the_tokenizer_spells_any_text(folder: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    text = "What is the color?\n\n\tça: 1112 杯 🍵 '"
    tokens = tokenizer(text)["input_ids"]
    assert tokenizer.decode(tokens) == text
    assert len(tokens) < len(text.encode())
    assert tokenizer.padding_side == "left"


def test_the_vocabulary_holds_every_token_id(folder: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) <= reload(folder).config.text_config.vocab_size < 400
