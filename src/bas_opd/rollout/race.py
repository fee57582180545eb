"""The race that draws a token for every row and measures what it was drawn from.

Every engine runs it on its own logits, so an engine changes a draw by the rounding of its logits
alone.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from bas_opd.compute.compiling import has_kernels, launching_on, power_of_two
from bas_opd.rollout.draws import race_noise

WIDTH = 4096
"""Tokens of the vocabulary that one program of the kernels looks at."""


class Race:
    """Draws a token for every row by its key, and measures log p_old and entropy."""

    keys: Tensor  # [row] int64
    logprobs: Tensor  # [row, token] of the tokens drawn
    entropies: Tensor  # [row, token]

    def __init__(self, *, limit: int, temperature: float, top_p: float, suppressed: Tensor) -> None:
        """`suppressed` are ids that are never drawn; results lie on their device."""
        self.limit, self.temperature, self.top_p = limit, temperature, top_p
        self._suppressed = suppressed
        self._barred = torch.zeros(0)
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
        if self._is_fused(logits):
            return self.fused(logits, alive, position)
        logprobs = self.log_distribution(logits)
        noise = race_noise(self.keys[alive], position.expand(len(alive)), logprobs.shape[-1])
        token = (logprobs + noise).argmax(-1)
        self.logprobs[alive, position] = logprobs.gather(-1, token[:, None])[:, 0]
        self.entropies[alive, position] = _entropy(logprobs)
        return token

    def fused(self, logits: Tensor, alive: Tensor, position: Tensor) -> Tensor:
        """Do the same in three kernels, which read the logits twice and keep nothing of them."""
        kernels: Any = importlib.import_module("bas_opd.rollout.triton_race")
        rows, vocab = logits.shape
        blocks, apart = -(-vocab // WIDTH), int(len(position) > 1)
        many = power_of_two(blocks)
        if len(self._barred) != vocab:
            self._barred = torch.zeros(vocab, device=logits.device)
            self._barred.index_fill_(0, self._suppressed, -torch.inf)
        logits, token = logits.contiguous(), torch.empty_like(alive)
        largest, total, weighted, best, logprob = logits.new_empty(5, rows, blocks)
        winner = torch.empty_like(best, dtype=torch.int32)
        every, sizes = (blocks, rows), (vocab, logits.stride(0), blocks)
        with launching_on(logits):
            kernels.summarise[every](
                *(logits, self._barred, largest, total, weighted),
                *(*sizes, self.temperature),
                width=WIDTH,
            )
            kernels.run[every](
                *(logits, self._barred, self.keys, alive, position, largest, total),
                *(best, winner, logprob, *sizes, apart, self.temperature),
                width=WIDTH,
                many=many,
            )
            kernels.finish[(rows,)](
                *(alive, position, largest, total, weighted, best, winner, logprob),
                *(token, self.logprobs, self.entropies, blocks, apart, self.limit),
                many=many,
            )
        return token

    def _is_fused(self, logits: Tensor) -> bool:
        is_plain = self.top_p >= 1.0 and logits.dtype is torch.float32
        return is_plain and has_kernels(logits.device)

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
