"""Random numbers with an address, so that a draw depends on that and on nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch


def addressed_generator(stage: str, *address: int) -> torch.Generator:
    """Return a CPU generator that is a pure function of its address, e.g. (seed, step)."""
    text = "/".join((stage, *map(str, address)))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "little") >> 1  # 63 bits: what manual_seed takes unsigned
    return torch.Generator(device="cpu").manual_seed(seed)


def draw_rows(rows: Iterable[int], count: int, generator: torch.Generator) -> list[int]:
    """Draw `count` rows uniformly without replacement; the order they come in does not matter."""
    ordered = sorted(rows)
    permutation = torch.randperm(len(ordered), generator=generator, device="cpu")
    return [ordered[position] for position in permutation[:count].tolist()]
