"""A random model in the shape of Qwen3.5-4B: nothing is downloaded, and its speed is the same."""

from __future__ import annotations

import json
from typing import Any

import torch
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

from bas_opd.model.attention import register_grouped_attention
from bas_opd.model.base import small_base
from bas_opd.model.processing import Processor
from bas_opd.model.shapes import TEXT, VISION
from bas_opd.model.vlm import VisionLanguageModel

LARGE = "qwen3.5-4b"
_PATCHES = ("patch_size", "spatial_merge_size", "temporal_patch_size", "in_channels")


def random_model(
    device: torch.device,
    *,
    text: dict[str, Any] | None = None,
    vision: dict[str, Any] | None = None,
) -> VisionLanguageModel:
    """Return a random Qwen3.5 of the 4B shape; `text` and `vision` replace parts of the shape.

    It reads prompts of the small model that comes with the package, with 16 pixels a token.
    """
    base = small_base()
    small = json.loads((base / "config.json").read_text(encoding="utf-8"))
    config = Qwen3_5Config(
        text_config={**TEXT, **(text or {})},
        vision_config={
            **{name: small["vision_config"][name] for name in _PATCHES},
            **VISION,
            **(vision or {}),
        },
        **{name: small[name] for name in small if name.endswith("_token_id")},
        tie_word_embeddings=True,
    )
    config._attn_implementation = register_grouped_attention()
    torch.manual_seed(0)
    with torch.device(device):
        network = Qwen3_5ForConditionalGeneration(config).eval()
    precision = torch.bfloat16 if device.type == "cuda" else torch.float32
    processor = Processor.load(base, max_pixels=2**24)
    return VisionLanguageModel(network, processor, precision=precision)
