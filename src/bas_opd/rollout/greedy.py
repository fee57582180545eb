"""The likeliest token at every position: how a model answers when it is judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.rollout.decoding import Decoder, groups_of_like_length, suppressed
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
    never = suppressed(model)

    def likeliest(logits: Tensor, _alive: Tensor, _position: Tensor) -> Tensor:
        return logits.index_fill(1, never, -torch.inf).argmax(-1)

    decode = Decoder(model, likeliest, limit=max_response_tokens)
    for group in groups_of_like_length(prompts, prompts_per_batch):
        with model.compute():
            prefix = model.prefill([prompts[place] for place in group])
            tokens, lengths = decode(prefix)
        # Outside the context, which would stay open while the caller holds the generator.
        for place, row, length in zip(group, tokens.cpu(), lengths.tolist(), strict=True):
            yield place, row[:length]
