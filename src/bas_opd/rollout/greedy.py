"""The likeliest token at every position: how a model answers when it is judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.rollout.decoding import decode, groups_of_like_length
from bas_opd.types import Prompt


@torch.no_grad()
def greedy_responses(
    model: VisionLanguageModel,
    prompts: Sequence[Prompt],
    *,
    max_response_tokens: int,
    prompts_per_batch: int,
) -> Iterator[tuple[int, Tensor]]:
    """Yield the place of each prompt and its response, batch by batch, shortest prompts first."""
    suppressed = list(model.processor.suppressed_ids)

    def likeliest(logits: Tensor, _alive: Tensor, _position: int) -> Tensor:
        logits[:, suppressed] = -torch.inf
        return logits.argmax(-1)

    for group in groups_of_like_length(prompts, prompts_per_batch):
        with model.compute():
            prefix = model.prefill([prompts[place] for place in group])
            tokens, lengths = decode(model, prefix, choose=likeliest, limit=max_response_tokens)
        # Outside the context, which would stay open while the caller holds the generator.
        for place, row, length in zip(group, tokens.cpu(), lengths.tolist(), strict=True):
            yield place, row[:length]
