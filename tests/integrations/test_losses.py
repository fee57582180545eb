"""The losses of others that `bench` times are the divergence that it says."""

from __future__ import annotations

import pytest
import torch

from bas_opd.bench.losses import orda_jsd, plain_jsd

pytest.importorskip("orda_kernel")


def test_the_loss_of_orda_kernel_is_the_jensen_shannon_divergence() -> None:
    torch.manual_seed(0)
    hidden, crop = torch.randn(2, 16, 24)
    weight, teacher = torch.randn(2, 50, 24)
    found = []
    for is_plain in (False, True):
        states, head = (x.clone().requires_grad_() for x in (hidden, weight))
        if is_plain:
            loss = plain_jsd((states @ head.T)[None], (crop @ teacher.T)[None], beta=0.5)
        else:
            loss = orda_jsd("torch")(states, head, crop, teacher)
        loss.backward()
        found.append([loss.detach(), states.grad, head.grad])
    for got, expected in zip(*found, strict=True):
        assert got is not None
        assert expected is not None
        assert torch.allclose(got, expected, rtol=1e-4, atol=1e-6)
