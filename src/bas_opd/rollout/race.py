"""The race that draws a token for every row and measures what it was drawn from.

Every engine runs it on its own logits, so an engine changes a draw by the rounding of its logits
alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bas_opd.rollout.draws import race_noise


class Race:
    """Draws a token for every row by its key, and measures log p_old and entropy."""

    keys: Tensor  # [row] int64
    logprobs: Tensor  # [row, token] of the tokens drawn
    entropies: Tensor  # [row, token]

    def __init__(self, *, limit: int, temperature: float, top_p: float, suppressed: Tensor) -> None:
        """`suppressed` are ids that are never drawn; results lie on their device."""
        self.limit, self.temperature, self.top_p = limit, temperature, top_p
        self._suppressed = suppressed
        self.make_room(0)

    def has_room(self, rows: int) -> bool:
        """Whether that many rows fit into the tensors."""
        return rows < len(self.keys)

    def make_room(self, rows: int) -> None:
        """Replace the tensors by others for that many rows, and one for what is of no row."""
        device, shape = self._suppressed.device, (rows + 1, self.limit)
        self.keys = torch.zeros(rows + 1, dtype=torch.int64, device=device)
        self.logprobs = torch.zeros(shape, device=device)
        self.entropies = torch.zeros(shape, device=device)

    def __call__(self, logits: Tensor, alive: Tensor, position: Tensor) -> Tensor:
        """Draw a token for each row of `alive`, at one position `[1]` or one for each."""
        logprobs = self.log_distribution(logits)
        noise = race_noise(self.keys[alive], position.expand(len(alive)), logprobs.shape[-1])
        token = (logprobs + noise).argmax(-1)
        self.logprobs[alive, position] = logprobs.gather(-1, token[:, None])[:, 0]
        self.entropies[alive, position] = _entropy(logprobs)
        return token

    def log_distribution(self, logits: Tensor) -> Tensor:
        """Return log p_old: what a token is really drawn from, in fp32."""
        scores = logits / self.temperature
        scores = scores.index_fill(1, self._suppressed, -torch.inf)
        if self.top_p < 1.0:
            scores = _nucleus(scores, self.top_p)
        return scores.log_softmax(-1)


def _nucleus(scores: Tensor, top_p: float) -> Tensor:
    """Keep the smallest set of likeliest tokens whose mass reaches top_p."""
    ranked, index = scores.sort(dim=-1, descending=True, stable=True)
    mass = ranked.softmax(-1)
    outside = mass.cumsum(-1) - mass >= top_p
    outside[..., 0] = False  # However small the mass asked for, the likeliest token stays.
    return scores.masked_fill(outside.scatter(-1, index, outside), -torch.inf)


def _entropy(logprobs: Tensor) -> Tensor:
    """Return H in nats; a token ruled out adds nothing."""
    return -(logprobs.exp() * logprobs.where(logprobs.isfinite(), 0.0)).sum(-1)
