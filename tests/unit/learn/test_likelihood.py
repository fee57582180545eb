"""SFT's loss equals the causal loss of transformers, in float64 where rounding hides nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.loss.loss_utils import ForCausalLMLoss

from bas_opd.learn.likelihood import Likelihood, TokenLogprobs
from bas_opd.learn.objective import PackedRows

LENGTHS, VOCAB, WIDTH = (5, 1, 9), 23, 6


@pytest.mark.parametrize("chunk", [4, 100])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_likelihood_is_the_causal_loss_and_has_its_gradients(chunk: int, scale: float) -> None:
    torch.manual_seed(3)
    head = nn.Linear(WIDTH, VOCAB, bias=False, dtype=torch.float64)
    n, of_step = sum(LENGTHS), sum(LENGTHS) + 8  # other micro-batches of the step have 8 tokens
    hidden = (scale * torch.randn(n, WIDTH, dtype=torch.float64)).requires_grad_()
    tokens = torch.randint(VOCAB, (n,))
    packed = PackedRows(rows=(0, 1, 2), lengths=LENGTHS, tokens=tokens, sampled=torch.zeros(n))
    part = Likelihood(head=head, tokens=of_step, chunk=chunk)(hidden, packed)
    assert hidden.grad is not None
    assert head.weight.grad is not None
    ours = [hidden.grad.clone(), head.weight.grad.clone()]

    hidden.grad = head.weight.grad = None
    count = torch.tensor(of_step)
    # It computes in float32 where it may; the same formula is compared in float64.
    logits = head(hidden)
    theirs = nn.functional.cross_entropy(logits, tokens, reduction="sum") / of_step
    theirs.backward()
    assert part.loss.item() == pytest.approx(theirs.item(), rel=1e-12)
    for found, gradient in zip(ours, (hidden.grad, head.weight.grad), strict=True):
        torch.testing.assert_close(found, gradient, rtol=1e-10, atol=1e-12)
    labels = tokens[None]
    causal = ForCausalLMLoss(
        logits.detach()[None], labels, VOCAB, num_items_in_batch=count, shift_labels=labels
    )
    assert part.loss.item() == pytest.approx(causal.item(), rel=1e-6)
    means = [-TokenLogprobs()(logits, tokens)[0:5].mean(), part.observed]
    assert means[1] is not None
    assert -means[0].item() == pytest.approx(means[1][0].item(), rel=1e-12)
