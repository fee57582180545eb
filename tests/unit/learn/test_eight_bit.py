"""AdamW with moments in 8 bits against torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bas_opd.compute.eight_bits import unpack
from bas_opd.learn import eight_bit
from bas_opd.learn.eight_bit import EightBitAdamW

SHAPES = [(40, 96), (129,), (), (64, 65), (33, 7), (5, 20, 30)]
OPTIONS: dict[str, Any] = {"lr": 1e-2, "weight_decay": 0.1}


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def take(optimizer: torch.optim.AdamW, weights: list[nn.Parameter], numbers: range) -> None:
    """Take steps at changing rates; one parameter has a gradient in every other step only."""
    for number in numbers:
        generator = torch.Generator().manual_seed(number)
        for place, weight in enumerate(weights):
            gradient = torch.randn(weight.shape, generator=generator)
            weight.grad = None if place == 3 and number % 2 == 0 else gradient
        optimizer.param_groups[0]["lr"] = 1e-2 / (number + 1)
        optimizer.step()


def test_the_first_step_and_short_rows_are_those_of_torch() -> None:
    ours, theirs = parameters(), parameters()
    one, other = EightBitAdamW(ours, **OPTIONS), torch.optim.AdamW(theirs, **OPTIONS)
    take(one, ours, range(1))
    take(other, theirs, range(1))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    take(one, ours, range(1, 6))
    take(other, theirs, range(1, 6))
    for place in (1, 2, 4):
        assert torch.equal(ours[place], theirs[place])
    assert not torch.equal(ours[0], theirs[0])


@pytest.mark.parametrize("fused", [False, True])
def test_weights_stay_near_those_of_torch(fused: bool) -> None:
    start, ours, theirs = parameters(), parameters(), parameters()
    take(EightBitAdamW(ours, fused=fused, **OPTIONS), ours, range(40))
    take(torch.optim.AdamW(theirs, fused=fused, **OPTIONS), theirs, range(40))
    for place, weight in enumerate(theirs):
        moved = (weight - start[place]).norm()
        assert (ours[place] - weight).norm() <= 0.03 * moved


def test_the_cut_into_pieces_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, cut = parameters(), parameters()
    take(EightBitAdamW(whole, **OPTIONS), whole, range(4))
    monkeypatch.setattr(eight_bit, "PIECE", 700)
    take(EightBitAdamW(cut, **OPTIONS), cut, range(4))
    assert all(torch.equal(a, b) for a, b in zip(whole, cut, strict=True))


def test_restored_it_continues_bit_for_bit() -> None:
    whole, cut = parameters(), parameters()
    one, other = EightBitAdamW(whole, **OPTIONS), EightBitAdamW(cut, **OPTIONS)
    take(one, whole, range(3))
    take(other, cut, range(1, 2))  # what is restored replaces this
    with torch.no_grad():
        for a, b in zip(cut, whole, strict=True):
            a.copy_(b)
    saved = {
        n: {name: value.clone() for name, value in one.state[p].items()}
        for n, p in enumerate(whole)
    }
    other.restore(saved)
    take(one, whole, range(3, 6))
    take(other, cut, range(3, 6))
    for a, b in zip(whole, cut, strict=True):
        assert torch.equal(a, b)
        for name, value in one.state[a].items():
            assert torch.equal(other.state[b][name], value)
            assert other.state[b][name].dtype == value.dtype


class Uneven:
    """Gradients of very different sizes that shrink on the way, as they do in training."""

    def __init__(self, weight: nn.Parameter) -> None:
        self.weight = weight
        generator = torch.Generator().manual_seed(3)
        self.sizes = torch.exp(1.5 * torch.randn(weight.shape, generator=generator))
        self._noise = torch.Generator().manual_seed(4)

    def __call__(self, step: int) -> Tensor:
        noise = torch.randn(self.weight.shape, generator=self._noise)
        return self.sizes * (self.weight.detach() + noise) * (0.01 if step < 150 else 0.001)


def test_small_moments_beside_large_ones_do_not_make_large_steps() -> None:
    """Where the second moment is rounded to 0 and the first is not, steps have no limit."""

    def trained(kind: type[torch.optim.AdamW]) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(2)
        weight = nn.Parameter(torch.randn(8, 1024, generator=generator))
        before = weight.detach().clone()
        optimizer, gradient = kind([weight], lr=1e-3, weight_decay=0.0), Uneven(weight)
        for step in range(300):
            weight.grad = gradient(step)
            optimizer.step()
        return weight.detach(), before

    ours, before = trained(EightBitAdamW)
    theirs, _ = trained(torch.optim.AdamW)
    assert (ours - theirs).norm() <= 0.1 * (theirs - before).norm()
    assert (ours - theirs).abs().max() <= 0.3 * (theirs - before).abs().max()


def test_moments_follow_gradients_that_change_within_a_block() -> None:
    """Rounded to the nearest level, a moment beside a steady one would never change."""
    ours, theirs = (nn.Parameter(torch.zeros(8, 256)) for _ in range(2))
    one = EightBitAdamW([ours], lr=1e-5, weight_decay=0.0)
    other = torch.optim.AdamW([theirs], lr=1e-5, weight_decay=0.0)
    generator = torch.Generator().manual_seed(0)
    sizes = torch.ones(256)
    for step in range(1500):
        if step == 50:
            sizes[::2] = 0.1
        gradient = sizes * (torch.randn(8, 256, generator=generator) + 0.5)
        for weight, optimizer in ((ours, one), (theirs, other)):
            weight.grad = gradient
            optimizer.step()
    state, wanted = one.state[ours], other.state[theirs]
    roots = unpack(state["root"], state["root_scale"], signed=False)
    ratio = (roots / wanted["exp_avg_sq"].sqrt())[:, ::2]
    assert 0.95 < float(ratio.median()) < 1.05
    first = unpack(state["exp_avg"], state["exp_avg_scale"], signed=True)[:, ::2]
    assert float(first.mean()) == pytest.approx(float(wanted["exp_avg"][:, ::2].mean()), rel=0.1)
    moved = theirs.detach().norm()
    assert float((ours.detach() - theirs.detach()).norm()) <= 0.15 * float(moved)


def test_processes_with_some_of_the_rows_move_as_one_with_all() -> None:
    whole = nn.Parameter(torch.zeros(9, 100))
    cut = [nn.Parameter(torch.zeros(n, 100)) for n in (4, 5)]
    alone = EightBitAdamW([whole], **OPTIONS)
    ranks = [
        EightBitAdamW([rows], first_rows=[start], **OPTIONS)
        for rows, start in zip(cut, (0, 4), strict=True)
    ]
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        whole.grad = torch.randn(9, 100, generator=generator)
        alone.step()
        for rows, gradient, optimizer in zip(cut, whole.grad.split([4, 5]), ranks, strict=True):
            rows.grad = gradient
            optimizer.step()
    assert torch.equal(torch.cat(list(cut)), whole)
