"""The shape of the small base model: Qwen3-VL at 7 million parameters, with a vocabulary to match.

Configuration, tokenizer and image settings are those of the shipped model. Its vocabulary has the
256 bytes, and one token for each word of the questions and responses. Qwen3-VL rather than Qwen3.5,
whose linear attention runs at a fraction of the speed without kernels of its own.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, GenerationConfig, Qwen3VLForConditionalGeneration

from bas_opd.model.base import small_base
from bas_opd.model.processing import Processor

PATCH, MERGE = 8, 2
FULL, CROP = 160, 96
"""Sides at which the model sees a whole picture of 320 pixels, and a small crop."""


def build(folder: Path, seed: int) -> Path:
    """Write an untrained model of this shape, with random weights."""
    shipped = small_base()
    config = AutoConfig.from_pretrained(shipped)
    config.dtype = torch.float32
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = Qwen3VLForConditionalGeneration(config)
    model.generation_config = GenerationConfig.from_pretrained(shipped)
    model.save_pretrained(folder)
    Processor.load(shipped).save(folder)
    return folder
