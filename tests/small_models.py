"""A small random model of each supported architecture, saved like any released checkpoint.

Tests do to it what a training run does to a real checkpoint (reload, prompts, sampling, gradients),
offline and on a CPU.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AddedToken,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5Tokenizer,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode

from bas_opd.errors import ModelError
from bas_opd.model.base import small_base
from bas_opd.model.family import Family

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
THINK_TOKENS = ("<think>", "</think>")

# Merged left to right, letter by letter: enough words for byte-pair boundaries to matter in tests.
WORDS = (
    " the",
    " is",
    " of",
    " in",
    " color",
    " what",
    " red",
    "What",
    "ing",
    "er",
    "on",
    "11",
    "\n\n",
)

_HEADS = 4
_VISION_WIDTH = 32
_MERGE = 2


def build_small_model(
    folder: Path,
    *,
    family: Family = "qwen3_5",
    seed: int = 0,
    hidden: int = 64,
    layers: int = 4,
    tied: bool = True,
    linear_width: int = 16,
) -> Path:
    """Write a small random model, its tokenizer and its image processor into `folder`."""
    if family == "qwen3_5" and layers % 4:
        raise ModelError(
            f"A Qwen3.5 model of {layers} layers cannot be built: its layers come in fours, three "
            "of linear attention and one of full attention. Choose a multiple of 4."
        )
    tokenizer = _tokenizer(family)
    config = _config(family, tokenizer, hidden=hidden, layers=layers, tied=tied)
    if family == "qwen3_5":
        text: Any = config.get_text_config()
        text.linear_key_head_dim = text.linear_value_head_dim = linear_width
    model = _random_model(family, config, seed)
    model.generation_config = GenerationConfig(
        eos_token_id=[_id(tokenizer, "<|im_end|>"), _id(tokenizer, "<|endoftext|>")],
        pad_token_id=tokenizer.pad_token_id,
        do_sample=True,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    processors = json.dumps(_processors(family, config), indent=2)
    (folder / "processor_config.json").write_text(processors + "\n", encoding="utf-8")
    return folder


def _tokenizer(family: Family) -> PreTrainedTokenizerBase:
    """Return a byte-level tokenizer of the family's own class, with one token for each word."""
    vocab, merges = _byte_pairs(WORDS)
    tokenizer_class = Qwen3_5Tokenizer if family == "qwen3_5" else Qwen2Tokenizer
    tokenizer = tokenizer_class(
        vocab=vocab,
        merges=merges,  # pyright: ignore[reportArgumentType] (pairs are what the class wants)
        unk_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        padding_side="left",
    )
    specials = [AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS]
    thinks = [AddedToken(text, special=False, normalized=False) for text in THINK_TOKENS]
    tokenizer.add_tokens([*specials, *thinks])
    tokenizer.chat_template = (small_base() / "chat_template.jinja").read_text(encoding="utf-8")
    return tokenizer


def _byte_pairs(words: Sequence[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return the byte-level alphabet with the words added, and the merges that build them."""
    letter = bytes_to_unicode()
    vocab = {letter[byte]: byte for byte in range(256)}
    merges: list[tuple[str, str]] = []
    for word in words:
        spelled = "".join(letter[byte] for byte in word.encode())
        for end in range(2, len(spelled) + 1):
            if spelled[:end] not in vocab:
                vocab[spelled[:end]] = len(vocab)
                merges.append((spelled[: end - 1], spelled[end - 1]))
    return vocab, merges


def _config(
    family: Family, tokenizer: PreTrainedTokenizerBase, *, hidden: int, layers: int, tied: bool
) -> PreTrainedConfig:
    # Released checkpoints pad the vocabulary too: ids exist that the tokenizer does not know.
    vocabulary = -(-len(tokenizer) // 16) * 16
    # The usual 0.02 leaves so narrow a model almost uniform, blind to image and padding alike.
    text: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS // 2,
        "initializer_range": hidden**-0.5,
        "tie_word_embeddings": tied,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision: dict[str, Any] = {
        "depth": 2,
        "hidden_size": _VISION_WIDTH,
        "intermediate_size": 2 * _VISION_WIDTH,
        "num_heads": 2,
        "out_hidden_size": hidden,
        "spatial_merge_size": _MERGE,
        "initializer_range": _VISION_WIDTH**-0.5,
    }
    ids: dict[str, Any] = {
        "image_token_id": _id(tokenizer, "<|image_pad|>"),
        "video_token_id": _id(tokenizer, "<|video_pad|>"),
        "vision_start_token_id": _id(tokenizer, "<|vision_start|>"),
        "vision_end_token_id": _id(tokenizer, "<|vision_end|>"),
        "tie_word_embeddings": tied,
    }
    match family:
        case "qwen3_5":
            text |= {
                "head_dim": 32,
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 4,
                "rope_parameters": _rope(rotated=8, interleaved=True)
                | {"partial_rotary_factor": 0.25},
            }
            vision |= {"num_position_embeddings": 16 * 16}
            return Qwen3_5Config(text_config=text, vision_config=vision, **ids)
        case "qwen3_vl":
            text |= {"head_dim": 32, "rope_parameters": _rope(rotated=32, interleaved=True)}
            vision |= {"num_position_embeddings": 16 * 16, "deepstack_visual_indexes": [0]}
            return Qwen3VLConfig(text_config=text, vision_config=vision, **ids)
        case "qwen2_5_vl":
            text |= {"rope_parameters": _rope(rotated=hidden // _HEADS)}
            # Windows of 2 x 2 tokens: even a 128 px image then has several.
            vision |= {"window_size": 56, "fullatt_block_indexes": [1]}
            return Qwen2_5_VLConfig(text_config=text, vision_config=vision, **ids)


def _rope(*, rotated: int, interleaved: bool = False) -> dict[str, Any]:
    """Return rotary settings with frequencies for time, height and width."""
    third = rotated // 2 // 3
    rope: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "mrope_section": [rotated // 2 - 2 * third, third, third],
    }
    return rope | ({"mrope_interleaved": True} if interleaved else {})


def _random_model(family: Family, config: PreTrainedConfig, seed: int) -> PreTrainedModel:
    model_class = {
        "qwen3_5": Qwen3_5ForConditionalGeneration,
        "qwen3_vl": Qwen3VLForConditionalGeneration,
        "qwen2_5_vl": Qwen2_5_VLForConditionalGeneration,
    }[family]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = model_class(config)
    for name, parameter in model.named_parameters():
        if name.endswith("dt_bias"):
            # As initialised, linear attention forgets within one token, and a wrong recurrent
            # state would show nowhere. This makes it remember tens of tokens.
            torch.nn.init.constant_(parameter, -4.0)
    return model


def _processors(family: Family, config: PreTrainedConfig) -> dict[str, Any]:
    """Return `processor_config.json`; its pixel limits allow images of one token."""
    name = "Qwen2_5_VLProcessor" if family == "qwen2_5_vl" else "Qwen3VLProcessor"
    video = "Qwen2VLVideoProcessor" if family == "qwen2_5_vl" else "Qwen3VLVideoProcessor"
    patch = config.vision_config.patch_size
    token = (patch * _MERGE) ** 2
    shared: dict[str, Any] = {
        "patch_size": patch,
        "temporal_patch_size": 2,
        "merge_size": _MERGE,
        "size": {"shortest_edge": token, "longest_edge": 1280 * token},
    }
    if family != "qwen2_5_vl":  # which keeps CLIP's mean and deviation, the default
        shared |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    return {
        "processor_class": name,
        "image_processor": {"image_processor_type": "Qwen2VLImageProcessor", **shared},
        "video_processor": {"video_processor_type": video, **shared},
    }


def _id(tokenizer: PreTrainedTokenizerBase, token: str) -> int:
    return tokenizer.get_vocab()[token]
