"""Our prompts beside those of `AutoProcessor`, which needs torchvision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision_here import needs_torchvision
from transformers import AutoProcessor

from bas_opd.model.processing import Processor

pytestmark = needs_torchvision

QUESTIONS = (
    "What is the color of the cup?",
    "  Is 11112 written\n\non the  sign?\n",
    "çé 杯子是什么颜色 🍵",
)


def photograph(width: int, height: int) -> Image.Image:
    """A smooth picture with some texture, so that resampling has something to blur."""
    rng = np.random.default_rng(width * height)
    coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("fixture", ["small_qwen35", "small_qwen3vl", "small_qwen25vl"])
@pytest.mark.parametrize("size", [(64, 64), (250, 130), (33, 500), (1400, 1100)])
@pytest.mark.parametrize("thinking", [False, True])
def test_prompts_equal_those_of_auto_processor(
    fixture: str, size: tuple[int, int], thinking: bool, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(fixture)
    image = photograph(*size)
    ours = Processor.load(folder, thinking=thinking)
    theirs: Any = AutoProcessor.from_pretrained(folder)
    for question in QUESTIONS:
        content = [{"type": "image", "image": image}, {"type": "text", "text": question}]
        expected = theirs.apply_chat_template(
            [{"role": "user", "content": content}],
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            add_generation_prompt=True,
            enable_thinking=thinking,
        )
        prompt = ours.encode(image, question)
        assert prompt.input_ids.tolist() == expected["input_ids"][0].tolist()
        assert prompt.grid.tolist() == expected["image_grid_thw"].tolist()
        types = ours.mm_token_type_ids(prompt.input_ids)
        assert types.tolist() == expected["mm_token_type_ids"][0].tolist()
        # Two libraries resample, each rounding to 8 bits: two of the 255 levels apart at most.
        level = 1 / (255 * min(ours.images.image_std))
        difference = (prompt.pixel_values - expected["pixel_values"]).abs()
        assert difference.max() < 2.01 * level
        assert difference.mean() < 0.05 * level
