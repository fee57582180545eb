"""The kernels of the loss, in Triton's interpreter, against plain PyTorch."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from bas_opd.distill import kernels


@pytest.fixture(autouse=True)
def triton_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tensors of the CPU reach the kernels."""
    found = importlib.import_module("bas_opd.distill.triton_kernels")
    monkeypatch.setattr(kernels, "_kernels", lambda: found)


def on_kernels(function: Any, logits: torch.Tensor, *given: Any) -> Any:
    class Looking(torch.Tensor):
        is_cuda = True  # type: ignore[assignment]

    return function(logits.as_subclass(Looking), *given)


@pytest.mark.parametrize("vocab", [64, 65, 640, 64 * 32 + 7])
def test_summaries_of_blocks(vocab: int) -> None:
    torch.manual_seed(vocab)
    logits = 5 * torch.randn(3, vocab)
    logits[1, : min(64, vocab)] = -torch.inf
    expected = kernels.block_summaries(logits)
    found = on_kernels(kernels.block_summaries, logits)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("vocab", [50, 4096, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_the_rest(vocab: int, dtype: torch.dtype) -> None:
    torch.manual_seed(vocab)
    logits, normaliser, scale = torch.randn(3, vocab), torch.randn(3) + 9, torch.randn(3)
    logits[0, 1] = -torch.inf
    expected = kernels.scaled_softmax(logits, normaliser, scale, torch.float32)
    found = on_kernels(kernels.scaled_softmax, logits, normaliser, scale, dtype)
    assert found.dtype is dtype
    rounding = 1e-5 if dtype is torch.float32 else 2**-7
    assert torch.allclose(found.float(), expected, rtol=rounding, atol=1e-8)
