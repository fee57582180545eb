"""Token after token for many rows at once, whatever the rule that chooses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from bas_opd.model.vlm import Prefix, VisionLanguageModel
from bas_opd.types import Prompt

# Rows that ended are dropped from the batch once they are at least this share of it: dropping
# copies the cache of all others.
LEAVING_SHARE = 1 / 8

Choose: TypeAlias = Callable[[Tensor, Tensor, int], Tensor]
"""From logits `[alive, vocab]`, the numbers of these rows, and their position, a token for each."""


def decode(
    model: VisionLanguageModel, prefix: Prefix, *, choose: Choose, limit: int
) -> tuple[Tensor, Tensor]:
    """Return tokens `[row, token]` and lengths `[row]`, the end token counted.

    A row that has ended may be asked for once more before it leaves; its token is then dropped.
    """
    device, rows = model.device, len(prefix.last_hidden)
    tokens = torch.full((rows, limit), model.processor.pad_id, device=device)
    lengths = torch.zeros(rows, dtype=torch.long, device=device)
    ends = torch.tensor(model.processor.eos_ids, device=device)
    alive = torch.arange(rows, device=device)
    going = torch.ones(rows, dtype=torch.bool, device=device)
    for position in range(limit):
        token = choose(model.logits(prefix.last_hidden), alive, position)
        now = alive[going]
        tokens[now, position] = token[going]
        lengths[now] = position + 1

        going = going & ~torch.isin(token, ends)
        left = int(going.sum())
        if left == 0 or position + 1 == limit:
            break
        if len(alive) - left >= LEAVING_SHARE * len(alive):
            kept = going.nonzero()[:, 0]
            prefix, alive, token = prefix.rows(kept), alive[kept], token[kept]
            going = going[kept]
        _, prefix = model.extend(prefix, token[:, None])
    return tokens, lengths


def groups_of_like_length(prompts: Sequence[Prompt], size: int) -> list[list[int]]:
    """Return which prompts are decoded together: those of like length, to pad little."""
    order = sorted(range(len(prompts)), key=lambda i: prompts[i].length)
    return [order[i : i + size] for i in range(0, len(order), size)]
