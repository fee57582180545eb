"""The shape of the small base model: Qwen3-VL at 7 million parameters, with a vocabulary to match.

Qwen3-VL rather than Qwen3.5, whose linear attention runs at a fraction of the speed without kernels
of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerBase,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from bas_opd.data.finesearch.assets import COLOURS, catalogue
from recipes.small_base.tokenizer import build_tokenizer

PATCH, MERGE = 8, 2
FULL, CROP = 160, 96
"""Sides at which the model sees a whole picture of 320 pixels, and a small crop."""

_OPENINGS = ("What", "Where", "Which", "How", "Is", "The", "It", "I")
_WORDS = (
    "a an and answer below above carry colour count digit from how is left many next no note of on "
    "or plate plates right says say see seen sign the there to under what where which with written "
    "number yes"
)


def words() -> list[str]:
    """Every word of questions and responses.

    Each begins with a space or a capital letter, so that no merge of one can cut another.
    """
    inner = [*_WORDS.split(), *catalogue().categories, *COLOURS]
    answers = [*catalogue().categories, *COLOURS, "left", "right", "above", "below", "yes", "no"]
    alone = [answer.capitalize() for answer in answers]
    return [*(f" {word}" for word in inner), *_OPENINGS, *alone, "user", "assistant", "\n\n"]


def build(folder: Path, seed: int) -> Path:
    """Write the untrained model with its tokenizer and image settings."""
    tokenizer = build_tokenizer("qwen3_vl", words())
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = Qwen3VLForConditionalGeneration(config(tokenizer))
    model.generation_config = GenerationConfig(
        eos_token_id=[tokenizer.convert_tokens_to_ids("<|im_end|>"), tokenizer.pad_token_id],
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "processor_config.json").write_text(json.dumps(processor(), indent=2) + "\n", "utf-8")
    return folder


def config(tokenizer: PreTrainedTokenizerBase) -> Qwen3VLConfig:
    """Return seven vision layers and four of the language model."""
    vocabulary = tokenizer.get_vocab()
    text: dict[str, Any] = {
        "vocab_size": -(-len(tokenizer) // 16) * 16,
        "hidden_size": 256,
        "intermediate_size": 640,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "mrope_section": [12, 10, 10],
            "mrope_interleaved": True,
        },
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision: dict[str, Any] = {
        "depth": 7,
        "hidden_size": 192,
        "intermediate_size": 768,
        "num_heads": 3,
        "out_hidden_size": 256,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "num_position_embeddings": (FULL // PATCH) ** 2,
        "deepstack_visual_indexes": [],
    }
    return Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=vocabulary["<|image_pad|>"],
        video_token_id=vocabulary["<|video_pad|>"],
        vision_start_token_id=vocabulary["<|vision_start|>"],
        vision_end_token_id=vocabulary["<|vision_end|>"],
        tie_word_embeddings=True,
    )


def processor() -> dict[str, Any]:
    """Return image settings that shrink a whole picture by two and enlarge a small crop."""
    shared: dict[str, Any] = {
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "merge_size": MERGE,
        "size": {"shortest_edge": CROP**2, "longest_edge": FULL**2},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    return {
        "processor_class": "Qwen3VLProcessor",
        "image_processor": {"image_processor_type": "Qwen2VLImageProcessor", **shared},
        "video_processor": {"video_processor_type": "Qwen3VLVideoProcessor", **shared},
    }
