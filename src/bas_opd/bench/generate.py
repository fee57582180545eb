"""`generate` of transformers, called as a user would who samples a step with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from bas_opd.bench.plain import as_in_transformers
from bas_opd.bench.subject import Subject
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.types import Prompt


def generate(subject: Subject, *, rows_of_each: int, sequences: int) -> int:
    """Draw with transformers: each prompt in `rows_of_each` rows, `sequences` returned for each."""
    model, tokens = subject.model, subject.size.tokens
    prompts = [prompt for prompt in subject.prompts() for _ in range(rows_of_each)]
    inputs = inputs_of(model, prompts)
    drawing: Any = model.network
    with model.compute(), as_in_transformers(drawing), _repeated_pictures(drawing):
        drawn: Tensor = drawing.generate(
            **inputs,
            do_sample=True,
            top_k=0,
            num_return_sequences=sequences,
            suppress_tokens=list(model.processor.suppressed_ids),
            max_new_tokens=tokens,
        )
    rows, total = drawn.shape
    if rows != len(prompts) * sequences or total != inputs["input_ids"].shape[1] + tokens:
        raise RuntimeError(f"generate returned {rows} rows of {total} tokens, not what was asked.")
    prefilled = sum(prompt.length for prompt in prompts)
    return (prefilled + len(prompts) * (tokens - 1)) * sequences


def inputs_of(model: VisionLanguageModel, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
    """Return prompts as transformers reads them, padded on the left."""
    ids, mask = _left_padded(prompts, model.processor.pad_id)
    inputs = {
        "input_ids": ids,
        "attention_mask": mask,
        "mm_token_type_ids": model.processor.mm_token_type_ids(ids),
        "pixel_values": torch.cat([prompt.pixel_values for prompt in prompts]),
        "image_grid_thw": torch.cat([prompt.grid for prompt in prompts]),
    }
    return {name: value.to(model.device) for name, value in inputs.items()}


def _left_padded(prompts: Sequence[Prompt], pad_id: int) -> tuple[Tensor, Tensor]:
    shape = (len(prompts), max(prompt.length for prompt in prompts))
    ids, mask = torch.full(shape, pad_id), torch.zeros(shape, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, -prompt.length :] = prompt.input_ids
        mask[row, -prompt.length :] = 1
    return ids, mask


@contextmanager
def _repeated_pictures(network: Any) -> Iterator[None]:
    """Let transformers 5.22 repeat pictures of a Qwen3-VL without deepstack layers.

    It reads the first of the layers, of which there is none.
    """
    name = "_expand_multimodal_outputs"
    has_none = getattr(network.config.vision_config, "deepstack_visual_indexes", None) == []
    if not has_none or not hasattr(network, name):
        yield
        return
    repeat = getattr(network, name)

    def repeated(ids: Tensor, encoded: dict[str, Any], **words: Any) -> dict[str, Any]:
        encoded["image"].deepstack_features = None
        repeat(ids, encoded, **words)
        encoded["image"].deepstack_features = []
        return encoded

    setattr(network, name, repeated)
    try:
        yield
    finally:
        delattr(network, name)
