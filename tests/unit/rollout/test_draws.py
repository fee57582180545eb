"""Noise with an address."""

from __future__ import annotations

import math
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bas_opd.rollout.decoding import DRAW_BYTES
from bas_opd.rollout.draws import race_noise, row_keys
from bas_opd.rollout.race import Race


def keys(n: int, seed: int = 7, step: int = 0) -> torch.Tensor:
    return row_keys(seed, step, torch.arange(n) // 8, torch.arange(n) % 8)


def test_a_draw_depends_on_its_address_alone() -> None:
    together = race_noise(keys(16), torch.full((16,), 5), 50)
    alone = race_noise(keys(16)[9:10], torch.tensor([5]), 50)
    assert torch.equal(together[9:10], alone)
    assert torch.equal(race_noise(keys(16)[9:10], torch.tensor([5]), 20), alone[:, :20])


def test_every_part_of_the_address_matters() -> None:
    first = race_noise(keys(1), torch.tensor([0]), 30)
    others = [
        race_noise(keys(1, seed=8), torch.tensor([0]), 30),
        race_noise(keys(1, step=1), torch.tensor([0]), 30),
        race_noise(keys(9)[8:], torch.tensor([0]), 30),
        race_noise(keys(2)[1:], torch.tensor([0]), 30),
        race_noise(keys(1), torch.tensor([1]), 30),
    ]
    assert all(not torch.isclose(first, other).any() for other in others)


def test_no_two_addresses_of_a_step_share_a_key() -> None:
    count = 28 * 8
    every = torch.cat([keys(count, step=step) for step in range(20)])
    assert len(every.unique()) == 20 * count


def test_the_race_draws_from_the_distribution() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    n = 40_000
    noise = race_noise(
        row_keys(0, 0, torch.arange(n), torch.zeros(n).long()), torch.zeros(n).long(), 4
    )
    shares = (probabilities.log() + noise).argmax(-1).bincount(minlength=4) / n
    spread = (probabilities * (1 - probabilities) / n).sqrt()
    assert ((shares - probabilities).abs() < 4 * spread).all()


def test_the_noise_is_that_of_a_standard_gumbel() -> None:
    noise = race_noise(keys(200), torch.arange(200), 500)
    assert noise.isfinite().all()
    assert abs(noise.mean().item() - 0.57722) < 0.02
    assert abs(noise.var().item() - torch.pi**2 / 6) < 0.05
    lag = (noise[:, 1:] * noise[:, :-1]).mean() - noise.mean() ** 2
    assert abs(lag.item()) < 0.03


def test_another_round_of_a_step_draws_other_noise_and_the_first_has_no_number() -> None:
    prompts, rollouts = torch.arange(3), torch.zeros(3, dtype=torch.long)
    plain, first, second = (row_keys(7, 2, prompts, rollouts, *more) for more in ((), (0,), (1,)))
    assert torch.equal(plain, first)
    assert not torch.isin(second, first).any()


VOCABULARY, ROWS = 151_936, 1000
RARE = 24 * math.log(2.0)
"""The largest noise of a fraction with 24 bits, as fp32 has them."""


def best_of_the_tail(rows: int) -> Tensor:
    """The best noise of a large vocabulary, for each of some rows."""
    keys = row_keys(11, 0, torch.arange(rows), torch.zeros(rows, dtype=torch.long))
    place = torch.zeros(1, dtype=torch.long)
    return torch.cat([race_noise(part, place, VOCABULARY).amax(-1) for part in keys.split(50)])


def is_drawn_as_often_as_it_should(best: Tensor) -> bool:
    """Whether unlikely tokens win against one that is `RARE` better, as often as they should.

    Of V tokens with Gumbel noise, one exceeds x with probability 1 - exp(-V exp(-x)).
    """
    expected = len(best) * -math.expm1(-VOCABULARY * math.exp(-RARE))
    found = int((best > RARE).sum())
    return abs(found - expected) < 2.9 * math.sqrt(expected)


def fraction_of(noise: Tensor) -> Tensor:
    """The fraction that this noise was made of."""
    return -torch.expm1(-torch.exp(-noise.double()))


def is_on_a_grid(best: Tensor, bits: int) -> bool:
    """Whether most fractions are multiples of half a level; of fine ones a fifth are that near."""
    halves = fraction_of(best) * 2.0 ** (bits + 1)
    return bool(((halves - halves.round()).abs() < 0.1).double().mean() > 0.5)


@pytest.mark.parametrize("bits", [24, 25, 26, 28, 30])
def test_the_noise_of_the_tail_is_finer_than_so_many_bits(bits: int) -> None:
    best = best_of_the_tail(100)
    assert not is_on_a_grid(best, bits)
    coarse = (fraction_of(best) * 2.0**bits).floor().clamp_min(0.5) * 2.0**-bits
    assert is_on_a_grid(-torch.log(-torch.log1p(-coarse)).float(), bits)


def test_the_tail_of_a_large_vocabulary_is_drawn_as_often_as_it_should() -> None:
    best = best_of_the_tail(ROWS)
    assert is_drawn_as_often_as_it_should(best)
    assert not is_drawn_as_often_as_it_should(best.clamp_max(RARE))  # a coarser noise
    mean = float(best.mean()) - math.log(VOCABULARY)
    assert mean == pytest.approx(0.5772, abs=4 * math.pi / math.sqrt(6 * ROWS))


class Living(TorchDispatchMode):
    """Knows the most bytes of the tensors that lived at one time, of those made inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        storage = found.untyped_storage() if isinstance(found, Tensor) else None
        if storage is not None and storage._cdata not in self._known:
            self._known.add(storage._cdata)
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())
        return found

    def _gone(self, place: int, size: int) -> None:
        self._known.discard(place)
        self.now -= size


def test_a_draw_takes_what_a_plan_counts() -> None:
    rows, vocab = 64, 5_000
    race = Race(limit=2, temperature=1.0, top_p=1.0, suppressed=torch.tensor([0]))
    race.make_room(rows)
    with Living() as living:
        logits = torch.zeros(rows, vocab)
        race(logits, torch.arange(rows), torch.tensor([0]))
    assert living.most == pytest.approx(DRAW_BYTES * logits.numel(), rel=0.01)
