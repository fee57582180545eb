"""AdamW with moments in host memory against torch's own, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from bas_opd.compute import streaming
from bas_opd.learn.offloaded import OffloadedAdamW

SHAPES = [(33, 7), (129,), (), (64, 65), (3,), (5, 4, 3)]
OPTIONS: dict[str, Any] = {"lr": 1e-2, "weight_decay": 0.1}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PIECE", 512)


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def steps(
    optimizer: torch.optim.AdamW, weights: list[nn.Parameter], numbers: range
) -> Iterator[int]:
    """Take steps at changing rates; one parameter has a gradient in every other step only."""
    for number in numbers:
        generator = torch.Generator().manual_seed(number)
        for place, weight in enumerate(weights):
            gradient = torch.randn(weight.shape, generator=generator)
            weight.grad = None if place == 3 and number % 2 == 0 else gradient
        optimizer.param_groups[0]["lr"] = 1e-2 / (number + 1)
        optimizer.step()
        yield number


def assert_same(
    ours: torch.optim.AdamW, theirs: torch.optim.AdamW, pairs: list[list[nn.Parameter]]
) -> None:
    for one, other in zip(*pairs, strict=True):
        assert torch.equal(one, other)
        assert ours.state[one].keys() == theirs.state[other].keys()
        for key, value in theirs.state[other].items():
            assert torch.equal(ours.state[one][key], value)
            assert ours.state[one][key].dtype == value.dtype


@pytest.mark.parametrize("fused", [False, True])
def test_every_step_is_that_of_torch(fused: bool) -> None:
    pairs = [parameters(), parameters()]
    ours = OffloadedAdamW(pairs[0], fused=fused, **OPTIONS)
    theirs = torch.optim.AdamW(pairs[1], fused=fused, **OPTIONS)
    both = zip(steps(ours, pairs[0], range(6)), steps(theirs, pairs[1], range(6)), strict=True)
    for _ in both:
        assert_same(ours, theirs, pairs)
    assert len(ours._moments[0].pieces) > 2


def test_restored_it_continues_as_torch_does() -> None:
    pairs = [parameters(), parameters()]
    theirs = torch.optim.AdamW(pairs[1], **OPTIONS)
    list(steps(theirs, pairs[1], range(1)))  # before the fourth parameter has moments
    ours = OffloadedAdamW(pairs[0], **OPTIONS)
    list(steps(ours, pairs[0], range(3)))  # what is restored replaces this
    with torch.no_grad():
        for one, other in zip(*pairs, strict=True):
            one.copy_(other)
    ours.restore({n: dict(theirs.state[p]) for n, p in enumerate(pairs[1]) if p in theirs.state})
    for _ in zip(
        steps(ours, pairs[0], range(1, 4)), steps(theirs, pairs[1], range(1, 4)), strict=True
    ):
        assert_same(ours, theirs, pairs)


def test_nothing_is_kept_before_the_first_step() -> None:
    optimizer = OffloadedAdamW(parameters(), **OPTIONS)
    optimizer.step()  # without a gradient
    assert not optimizer.state
    assert not optimizer._moments


def test_hooks_are_called_once_a_step() -> None:
    weights = parameters()
    optimizer = OffloadedAdamW(weights, **OPTIONS)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    list(steps(optimizer, weights, range(2)))
    assert calls == ["before", "after"] * 2
