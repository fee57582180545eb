"""The shapes of models that are planned or measured without their files."""

from __future__ import annotations

from typing import Any

TEXT: dict[str, Any] = {
    "hidden_size": 2560,
    "intermediate_size": 9216,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "vocab_size": 248_320,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000_000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}
"""The language model of Qwen3.5-4B."""
VISION: dict[str, Any] = {
    "depth": 24,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_heads": 16,
    "out_hidden_size": 2560,
}
"""The vision tower of Qwen3.5-4B."""
KNOWN: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3.5-4B": {
        "text_config": TEXT,
        "vision_config": VISION,
        "tie_word_embeddings": True,
    },
    "Qwen/Qwen3.5-9B": {
        "text_config": {
            **TEXT,
            "hidden_size": 4096,
            "intermediate_size": 12_288,
            "tie_word_embeddings": False,
        },
        "vision_config": {
            **VISION,
            "depth": 27,
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "out_hidden_size": 4096,
        },
        "tie_word_embeddings": False,
    },
}
"""Hub id -> its configuration, as far as it decides sizes."""
