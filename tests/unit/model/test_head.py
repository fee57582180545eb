"""Products in half precision with fp32 sums, on a CPU where the same products are emulated."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn

from bas_opd.distill.loss import DistillSettings
from bas_opd.learn import Distillation
from bas_opd.learn.objective import PackedRows
from bas_opd.model.head import Head, plain_head
from bas_opd.types import FullLogits


def head(*, vocabulary: int = 700, hidden: int = 24) -> Head:
    weight = torch.randn(vocabulary, hidden, generator=torch.Generator().manual_seed(0))
    return Head(nn.Parameter(weight), torch.bfloat16)


def states(tokens: int, *, seed: int, hidden: int = 24) -> Tensor:
    return torch.randn(tokens, hidden, generator=torch.Generator().manual_seed(seed))


def test_logits_are_the_product_of_rounded_factors_in_fp32() -> None:
    projection, hidden = head(), states(5, seed=1)
    expected = hidden.bfloat16().float() @ projection.weight.detach().bfloat16().float().T
    found = projection.logits(hidden)
    assert found.dtype is torch.float32
    assert torch.equal(found, expected)


def test_the_rounded_weights_follow_the_weights_in_their_place() -> None:
    projection, hidden = head(), states(2, seed=1)
    place, before = projection.rounded().data_ptr(), projection.logits(hidden)
    assert projection.rounded().data_ptr() == place
    with torch.no_grad():
        projection.weight.mul_(2.0)
    assert torch.allclose(projection.logits(hidden), 2 * before)
    assert projection.rounded().data_ptr() == place
    other = projection.weight.detach() / 4
    own, projection.weight.data = projection.weight.data, other
    assert torch.allclose(projection.logits(hidden), before / 2)
    projection.weight.data = own
    assert torch.allclose(projection.logits(hidden), 2 * before)
    projection.replace(other)
    assert torch.allclose(projection.logits(hidden), before / 2)


def test_weights_that_are_rounded_already_are_multiplied_as_they_are() -> None:
    projection, hidden = head(), states(5, seed=1)
    rounded = Head(projection.weight.detach().bfloat16(), torch.bfloat16)
    assert rounded.rounded() is rounded.weight
    assert torch.equal(rounded.logits(hidden), projection.logits(hidden))


def test_an_optimizer_step_is_seen() -> None:
    projection, hidden = head(), states(2, seed=1)
    before = projection.logits(hidden)
    assert isinstance(projection.weight, nn.Parameter)
    optimizer = torch.optim.AdamW([projection.weight], lr=0.1, fused=True)
    optimizer.register_step_post_hook(projection.forget)
    projection.logits(hidden).sum().backward()
    optimizer.step()
    assert not torch.allclose(projection.logits(hidden), before)


def test_a_head_that_does_more_than_multiply_is_not_plain() -> None:
    assert plain_head(nn.Linear(3, 4, bias=False)) is not None
    assert plain_head(nn.Linear(3, 4)) is None
    assert plain_head(nn.Sequential(nn.Linear(3, 4, bias=False))) is None


class Scores:
    """A teacher with given logits."""

    def __init__(self, logits: Tensor) -> None:
        self.logits, self.scored_tokens = logits, len(logits)
        self.rows, self.support = (0, 1), None
        self.processed_tokens = self.prefilled_prompts = self.rescored_tokens = 0

    def chunks(self, rows: Sequence[int], size: int) -> Iterator[FullLogits]:
        yield from (FullLogits(part.clone()) for part in self.logits.split(size))


@pytest.mark.parametrize("support", ["tail", "renormalise"])
@pytest.mark.parametrize("chunk", [4, 64])
def test_the_explicit_gradient_is_that_of_autograd(support: str, chunk: int) -> None:
    projection = head()
    hidden = states(19, seed=2)
    teacher = Scores(projection.logits(hidden + 0.5 * states(19, seed=3)).detach())
    packed = PackedRows(
        rows=(0, 1),
        lengths=(7, 12),
        tokens=torch.zeros(19, dtype=torch.long),
        sampled=torch.zeros(19),
    )
    settings = DistillSettings(k=30, support=support, tokens_per_chunk=chunk)  # type: ignore[arg-type]
    found = []
    for fast in (None, projection):
        leaf = hidden.clone().requires_grad_()
        projection.weight.grad = None
        objective = Distillation(teacher, projection.logits, settings, fast)
        # A second micro-batch adds to the gradient of the first.
        objective(leaf * 1.0, packed)
        part = objective(leaf * 1.0, packed)
        assert part.observed is not None
        assert leaf.grad is not None
        assert projection.weight.grad is not None
        found.append((part.loss, part.observed, leaf.grad, projection.weight.grad))
    for plain, explicit in zip(*found, strict=True):
        scale = float(plain.abs().max())
        assert torch.allclose(plain, explicit, rtol=0, atol=1e-2 * scale)
    assert torch.allclose(found[0][0], found[1][0], rtol=1e-5)
    assert torch.allclose(found[0][1], found[1][1], rtol=1e-4)


@pytest.mark.parametrize("fast", [True, False])
def test_no_chunk_of_logits_outlives_its_turn(fast: bool) -> None:
    projection, hidden = head(), states(12, seed=2).requires_grad_()
    living: list[weakref.ref[Tensor]] = []

    class Watched(Scores):
        def chunks(self, rows: Sequence[int], size: int) -> Iterator[FullLogits]:
            for part in self.logits.split(size):
                assert not any(each() is not None for each in living)
                logits = part.clone()
                living.append(weakref.ref(logits))
                yield FullLogits(logits)
                del logits

    teacher = Watched(projection.logits(states(12, seed=3)).detach())
    packed = PackedRows(
        rows=(0, 1),
        lengths=(4, 8),
        tokens=torch.zeros(12, dtype=torch.long),
        sampled=torch.zeros(12),
    )
    settings = DistillSettings(k=9, tokens_per_chunk=3)
    fast_head = projection if fast else None
    Distillation(teacher, projection.logits, settings, fast_head)(hidden * 1.0, packed)
    assert len(living) == 4


def test_measuring_leaves_no_gradient() -> None:
    projection, hidden = head(), states(6, seed=2)
    teacher = Scores(projection.logits(states(6, seed=3)).detach())
    packed = PackedRows(
        rows=(0, 1), lengths=(2, 4), tokens=torch.zeros(6, dtype=torch.long), sampled=torch.zeros(6)
    )
    part = Distillation(teacher, projection.logits, DistillSettings(k=9), projection)(
        hidden, packed
    )
    assert part.observed is not None
    assert projection.weight.grad is None


def test_frozen_weights_get_no_gradient() -> None:
    projection, hidden = head(), states(6, seed=2).requires_grad_()
    projection.weight.requires_grad_(False)
    gradient = torch.randn(6, 700).bfloat16()
    back = projection.backward(hidden.detach(), gradient)
    assert back.shape == hidden.shape
    assert projection.weight.grad is None
