"""Importance weights against their definition, and in expectation over a whole vocabulary."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stage_fixtures import crop_teacher, draw, make_examples, make_model
from torch import Tensor

from bas_opd.distill import topk_divergence
from bas_opd.distill.loss import DistillSettings
from bas_opd.learn import (
    ClippedPolicy,
    ClipSettings,
    Correction,
    Distillation,
    Learner,
    OptimizerSettings,
    PackedRows,
    TokenLogprobs,
    clipped_policy_loss,
    importance_weights,
)
from bas_opd.learn.importance import importance_report
from bas_opd.model.head import Head
from bas_opd.types import FullLogits, ImportanceReport

VOCAB = 7
CAPS = [0.5, 2.0, 3.0]
PLAIN: Any = {"epsilon_low": 0.2, "epsilon_high": 0.28}


def logits(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("cap", CAPS)
def test_a_weight_is_the_ratio_of_probabilities_up_to_the_cap(cap: float) -> None:
    trainer, engine = -logits(1, 4, 5).abs(), -logits(2, 4, 5).abs()
    expected = [
        [min(math.exp(p) / math.exp(q), cap) for p, q in zip(*rows, strict=True)]
        for rows in zip(trainer.tolist(), engine.tolist(), strict=True)
    ]
    found = importance_weights(trainer, engine, cap=cap)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    assert 0 < int((found == cap).sum()) < found.numel()


def test_no_gradient_goes_through_a_weight() -> None:
    trainer = logits(1, 3).requires_grad_()
    assert not importance_weights(trainer, logits(2, 3)).requires_grad


def test_a_cap_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="cap must be above 0"):
        importance_weights(logits(1, 3), logits(2, 3), cap=0.0)


def test_the_same_distribution_gives_exactly_the_loss_without() -> None:
    new = logits(1, 4, 5).requires_grad_()
    old, mask, advantages = logits(2, 4, 5), torch.ones(4, 5), logits(3, 4)
    plain = clipped_policy_loss(new, old, advantages, mask, **PLAIN)
    weights = importance_weights(old, old.clone())
    weighed = clipped_policy_loss(new, old, advantages, mask, **PLAIN, importance=weights)
    assert torch.equal(plain, weighed)
    assert torch.equal(*torch.autograd.grad(plain, new), *torch.autograd.grad(weighed, new))


def test_what_stands_in_the_padding_changes_nothing() -> None:
    new, old, advantages = logits(1, 2, 3), logits(2, 2, 3), logits(3, 2)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    weights = torch.tensor([[1.5, 0.5, math.nan], [1.0, math.inf, 9.0]], dtype=torch.float64)
    first = clipped_policy_loss(new, old, advantages, mask, **PLAIN, importance=weights)
    clean = weights.where(mask.bool(), 1.0)
    assert torch.equal(
        first, clipped_policy_loss(new, old, advantages, mask, **PLAIN, importance=clean)
    )


def expected_gradient(drawn_from: Tensor, own: Tensor, gains: Tensor, cap: float | None) -> Tensor:
    """Return the mean gradient of the loss over every token that a distribution may draw."""
    scores = own.clone().requires_grad_()
    logprobs = scores.log_softmax(-1)
    weights = None
    if cap is not None:
        weights = importance_weights(logprobs.detach(), drawn_from.log_softmax(-1), cap=cap)
    total = torch.zeros((), dtype=torch.float64)
    for token, chance in enumerate(drawn_from.softmax(-1)):
        one = logprobs[None, token : token + 1]
        loss = clipped_policy_loss(
            one,
            one.detach(),
            gains[token : token + 1],
            torch.ones(1, 1),
            **PLAIN,
            importance=None if weights is None else weights[None, token : token + 1],
        )
        total = total + chance * loss
    return torch.autograd.grad(total, scores)[0]


def test_a_biased_engine_is_corrected_in_expectation() -> None:
    own, gains = logits(1, VOCAB), logits(3, VOCAB)
    engine = own + 0.3 * logits(2, VOCAB)
    on_policy = expected_gradient(own, own, gains, cap=None)
    biased = expected_gradient(engine, own, gains, cap=None)
    corrected = expected_gradient(engine, own, gains, cap=1e9)
    torch.testing.assert_close(corrected, on_policy, rtol=1e-12, atol=1e-14)
    assert not torch.allclose(biased, on_policy, rtol=1e-2)


def test_truncation_leaves_a_bias_that_is_smaller_than_without_weights() -> None:
    own, gains = logits(1, VOCAB), logits(3, VOCAB)
    engine = own + 0.6 * logits(2, VOCAB)
    on_policy = expected_gradient(own, own, gains, cap=None)
    errors = [
        float((expected_gradient(engine, own, gains, cap=cap) - on_policy).norm())
        for cap in (None, 1.5, 1e9)
    ]
    assert errors[0] > errors[1] > errors[2]


def test_the_mean_weight_of_a_divergence_is_one_given_the_tokens_before_it() -> None:
    """D does not depend on the drawn token: the weights add noise, and no correction."""
    own, engine = logits(1, VOCAB), logits(2, VOCAB)
    weights = importance_weights(own.log_softmax(-1), engine.log_softmax(-1), cap=1e9)
    assert float((engine.softmax(-1) * weights).sum()) == pytest.approx(1.0)


def test_a_report_counts_what_was_truncated() -> None:
    apart = torch.tensor([0.0, math.log(2.0) + 1e-6, -3.0, 1.0])
    found = importance_report(apart, 2.0)
    assert (found.tokens, found.truncated) == (4, 2)
    assert found.max_difference == 3.0
    assert found.total_difference == pytest.approx(float(apart.abs().sum()))
    joined = ImportanceReport.joined([found, None, importance_report(torch.tensor([-4.0]), 2.0)])
    assert joined is not None
    assert (joined.tokens, joined.truncated, joined.max_difference) == (5, 2, 4.0)
    assert ImportanceReport.joined([None]) is None


class Scores:
    """A teacher that knows all logits."""

    def __init__(self, whole: Tensor, size: int) -> None:
        self.rows, self.scored_tokens = (0, 1), len(whole)
        self.processed_tokens = self.prefilled_prompts = 0
        self._whole, self._size = whole, size

    def chunks(self, rows: object, size: int) -> object:
        assert size == self._size
        return (FullLogits(part.clone()) for part in self._whole.split(size))


@pytest.mark.parametrize("is_explicit", [False, True])
@pytest.mark.parametrize("support", ["tail", "renormalise"])
def test_each_token_of_a_distillation_has_its_weight(is_explicit: bool, support: str) -> None:
    generator = torch.Generator().manual_seed(4)
    weight = torch.randn(300, 12, generator=generator)
    hidden = torch.randn(10, 12, generator=generator)
    theirs = torch.randn(10, 300, generator=generator)
    tokens = torch.randint(0, 300, (10,), generator=generator)
    own = (hidden @ weight.T).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    apart = 0.8 * torch.randn(10, generator=generator)
    packed = PackedRows(rows=(0, 1), lengths=(4, 6), tokens=tokens, sampled=own - apart)
    settings = DistillSettings(k=20, tokens_per_chunk=3, support=support)  # type: ignore[arg-type]
    objective = Distillation(
        Scores(theirs, 3),  # type: ignore[arg-type]
        lambda states: states @ weight.T,
        settings,
        Head(weight, torch.float32) if is_explicit else None,
        Correction(logprobs=TokenLogprobs(), cap=1.5),
    )
    ours = hidden.clone().requires_grad_()
    part = objective(ours, packed)

    reference = hidden.clone().requires_grad_()
    divergence = topk_divergence(reference @ weight.T, theirs, k=20, alpha=0.5, support=support)  # type: ignore[arg-type]
    loss = (divergence * apart.exp().clamp_max(1.5)).sum() / 10
    loss.backward()
    assert float(part.loss) == pytest.approx(float(loss.detach()), rel=1e-4)
    assert ours.grad is not None
    assert reference.grad is not None
    torch.testing.assert_close(ours.grad, reference.grad, rtol=2e-4, atol=1e-6)
    assert part.importance is not None
    assert part.importance.tokens == 10
    assert part.importance.truncated == int((apart.exp() > 1.5).sum()) > 0
    assert part.importance.max_difference == pytest.approx(float(apart.abs().max()), rel=1e-4)


@pytest.mark.parametrize("has_old", [False, True])
def test_micro_batches_of_a_policy_have_their_weights_and_one_report(
    has_old: bool, small_qwen35: Path, tmp_path: Path
) -> None:
    model = make_model(small_qwen35)
    rollouts = draw(model, make_examples(tmp_path))
    generator = torch.Generator().manual_seed(2)
    apart = 0.7 * torch.randn(rollouts.logprobs.shape, generator=generator)
    drawn = replace(rollouts, logprobs=rollouts.logprobs - apart)
    rows = [row for row in range(len(rollouts)) if rollouts.lengths[row]]
    lengths = rollouts.lengths.tolist()
    objective = ClippedPolicy(
        head=model.logits,
        logprobs=TokenLogprobs(suppressed=tuple(model.processor.suppressed_ids)),
        settings=ClipSettings(importance_cap=2.0),
        advantages=dict.fromkeys(rows, 1.0),
        weights=dict.fromkeys(rows, 1.0),
        old={row: rollouts.logprobs[row, : lengths[row]] for row in rows} if has_old else None,
        chunk=5,
    )
    learner = Learner(model, OptimizerSettings(tokens_per_micro_batch=40))
    found = learner.accumulate(drawn, rows, objective)
    valid = apart[rollouts.mask]
    # At a ratio of 1 the loss is minus the sum of the weights.
    assert float(found.loss) == pytest.approx(-float(valid.exp().clamp_max(2).sum()), rel=1e-4)
    assert found.importance is not None
    assert found.importance.tokens == len(valid)
    assert found.importance.truncated == int((valid.exp() > 2).sum()) > 0
    mean = found.importance.total_difference / len(valid)
    assert mean == pytest.approx(float(valid.abs().mean()), rel=1e-4)


def test_weights_are_of_the_old_log_probs_and_leave_the_penalty_alone() -> None:
    generator = torch.Generator().manual_seed(5)

    def apart() -> Tensor:
        return 0.6 * torch.randn(10, generator=generator)

    weight = torch.randn(50, 12, generator=generator)
    hidden = torch.randn(10, 12, generator=generator)
    tokens = torch.randint(0, 50, (10,), generator=generator)
    now = (hidden @ weight.T).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    old, sampled, reference = now + apart(), now + apart(), now + apart()
    advantages = torch.tensor([1.0, -0.5]).repeat_interleave(torch.tensor([4, 6]))
    objective = ClippedPolicy(
        head=lambda states: states @ weight.T,
        logprobs=TokenLogprobs(),
        settings=ClipSettings(beta=0.3, importance_cap=1.5),
        advantages={0: 1.0, 1: -0.5},
        weights={0: 0.1, 1: 0.1},
        old={0: old[:4], 1: old[4:]},
        reference={0: reference[:4], 1: reference[4:]},
        chunk=3,
    )
    packed = PackedRows(rows=(0, 1), lengths=(4, 6), tokens=tokens, sampled=sampled)
    ours, theirs = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    part = objective(ours, packed)

    new = (theirs @ weight.T).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    ratio = (new - old).exp()
    surrogate = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    penalty = (reference - new).exp() - (reference - new) - 1
    loss = ((old - sampled).exp().clamp_max(1.5) * surrogate + 0.3 * penalty).sum() * 0.1
    loss.backward()
    assert float(part.loss) == pytest.approx(float(loss.detach()), rel=1e-5)
    assert ours.grad is not None
    assert theirs.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
    assert part.importance == importance_report(old - sampled, 1.5)


def test_a_step_without_weights_reports_none(small_qwen35: Path, tmp_path: Path) -> None:
    model = make_model(small_qwen35)
    rollouts = draw(model, make_examples(tmp_path))
    teacher = crop_teacher(model).score(rollouts, (0, 1))
    objective = Distillation(teacher, model.logits, DistillSettings(k=20))
    update = Learner(model, OptimizerSettings()).update(rollouts, (0, 1), objective)
    assert update.importance is None
