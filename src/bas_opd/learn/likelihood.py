"""Log-probabilities of given tokens, and maximum likelihood as an objective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bas_opd.learn.objective import ObjectivePart, PackedRows, backward_in_chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """log p of given tokens. With the settings of a sampler, that of what it draws from."""

    temperature: float = 1.0
    suppressed: tuple[int, ...] = ()
    """Ids that are never drawn."""

    def __call__(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Return log p of `tokens` `[token]` under `logits` `[token, vocab]`."""
        scores = logits / self.temperature
        if self.suppressed:
            never = torch.tensor(self.suppressed, device=scores.device)
            scores = scores.index_fill(1, never, -torch.inf)
        return scores.log_softmax(-1).gather(-1, tokens.to(scores.device)[:, None])[:, 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Likelihood:
    """L = -sum of log p over all tokens of the step / their number: what SFT minimises.

    It observes the mean log p of every row.
    """

    head: Callable[[Tensor], Tensor]
    """The student's projection from hidden states to logits."""
    tokens: int
    """Tokens of the step, over all micro-batches."""
    chunk: int = 512
    logprobs: TokenLogprobs = TokenLogprobs()

    def __call__(self, hidden: Tensor, packed: PackedRows) -> ObjectivePart:
        """Compare packed tokens with what the student predicts."""
        targets = iter(packed.tokens.split(self.chunk))

        def compute(states: Tensor) -> tuple[Tensor, Tensor]:
            logprobs = self.logprobs(self.head(states), next(targets))
            return -logprobs.sum() / max(1, self.tokens), logprobs

        loss, logprobs = backward_in_chunks(hidden, self.chunk, compute)
        return ObjectivePart(loss=loss, observed=packed.row_means(logprobs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """No objective: it notes log p of every token of every row, and adds nothing to a loss."""

    head: Callable[[Tensor], Tensor]
    logprobs: TokenLogprobs
    found: dict[int, Tensor]
    """Row -> log p of its tokens, detached; filled by the calls."""
    chunk: int = 512

    def __call__(self, hidden: Tensor, packed: PackedRows) -> ObjectivePart:
        """Note the log-probs of packed rows."""
        parts = zip(hidden.split(self.chunk), packed.tokens.split(self.chunk), strict=True)
        values = torch.cat([self.logprobs(self.head(h), t).detach() for h, t in parts])
        self.found.update(zip(packed.rows, values.split(packed.lengths), strict=True))
        return ObjectivePart(loss=torch.zeros((), device=hidden.device))
