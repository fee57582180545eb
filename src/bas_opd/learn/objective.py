"""The seam of a training objective: what happens to the student's hidden states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bas_opd.types import ImportanceReport


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """The rows of one micro-batch, their valid response tokens packed one row after another."""

    rows: tuple[int, ...]
    lengths: tuple[int, ...]
    tokens: Tensor  # [token] response token ids, CPU
    sampled: Tensor  # [token] log-probs under which they were drawn, CPU

    def row_means(self, per_token: Tensor) -> Tensor:
        """Return the mean of packed values `[token]` over each row, `[row]`."""
        return torch.stack([part.mean() for part in per_token.split(self.lengths)])


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectivePart:
    """What one micro-batch adds to the step, detached."""

    loss: Tensor
    """Its share of the loss: the denominator is that of the whole step."""
    observed: Tensor | None = None  # [row]
    """What the objective measured on each row, if anything."""
    importance: ImportanceReport | None = None
    """Where tokens had importance weights."""


class Objective(Protocol):
    """Turns hidden states into a loss. Micro-batches, memory and the optimizer are the learner's.

    `hidden` `[token, hidden]` holds the state that predicts each packed token. If it requires a
    gradient, the call runs the backward pass into it; otherwise it only measures. The head's
    gradients come first: those of the hidden states let the network go back.
    """

    def __call__(self, hidden: Tensor, packed: PackedRows) -> ObjectivePart: ...


Compute = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From the hidden states of the next chunk, its share of the loss and a value for each token."""


def backward_in_chunks(hidden: Tensor, size: int, compute: Compute) -> tuple[Tensor, Tensor]:
    """Apply `compute` to `size` tokens at a time; return the loss and the values of all tokens.

    Each chunk goes back to its hidden states at once, so the logits of one chunk are all that
    exists; one backward pass through the network follows for all of them.
    """
    leaves = [part.detach().requires_grad_(hidden.requires_grad) for part in hidden.split(size)]
    losses, values = [], []
    for leaf in leaves:
        loss, per_token = compute(leaf)
        if hidden.requires_grad:
            loss.backward()
        losses.append(loss.detach())
        values.append(per_token.detach())
        del loss, per_token  # and with them what they were computed from
    if hidden.requires_grad:
        hidden.backward(torch.cat([_gradient(leaf) for leaf in leaves]))
    return torch.stack(losses).sum(), torch.cat(values)


def _gradient(leaf: Tensor) -> Tensor:
    assert leaf.grad is not None
    return leaf.grad
