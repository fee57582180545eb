"""Random draws with an address: the same numbers however the batch is cut, on any device.

A token is drawn by an exponential race (Gumbel-max): every token of the vocabulary gets its own
noise, a hash of (seed, step, prompt, rollout, position, token), and the best sum of log-probability
and noise wins. Rounding then changes a draw only where two tokens all but tie, whereas a single
uniform pushed through a cumulative sum would feel every rounding of every token before it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bas_opd.compute.hashing import mix


def row_keys(seed: int, step: int, prompts: Tensor, rollouts: Tensor, round: int = 0) -> Tensor:
    """Return one key per row, `[row]` int64, from its address."""
    key = mix(torch.tensor(seed, dtype=torch.int64))
    key = mix(key + step)
    if round:  # Most steps have one round only, whose draws have no number of it in their address.
        key = mix(key + round)
    return mix(mix(key + prompts) + rollouts)


def race_noise(keys: Tensor, positions: Tensor, vocab: int) -> Tensor:
    """Return -log E with E exponential, `[row, vocab]` fp32, for each row at its position."""
    at_position = mix(keys + positions)
    tokens = torch.arange(vocab, device=keys.device)
    hashed = mix(at_position[:, None] + tokens)
    # 53 random bits as a fraction. It is the small ones that win the race, and there fp32 is exact
    # in relative terms, so the tail of the noise is as fine as the bits allow.
    fraction = ((hashed >> 11) & (2**53 - 1)).to(torch.float64) * 2.0**-53
    exponential = -torch.log1p(-fraction.to(torch.float32).clamp(2.0**-54, 1 - 2.0**-24))
    return -exponential.log()
