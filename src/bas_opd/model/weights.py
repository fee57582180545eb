"""Sets of trainable weights: the student's own, and a second set that can stand in for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bas_opd.errors import CheckpointError
from bas_opd.model.head import Head
from bas_opd.model.vlm import VisionLanguageModel


class StudentWeights:
    """theta: the parameters that training changes, as a part of a checkpoint."""

    def __init__(self, model: VisionLanguageModel) -> None:
        self._model = model

    def state_dict(self) -> dict[str, nn.Parameter]:
        """Return the live parameters by name."""
        return self._model.trainable()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy saved values into the live parameters."""
        _copy_into(self._model.trainable(), state, what="student")


class ShadowWeights:
    """A second set of the trainable weights in fp32, lent to the network while it is needed.

    With LoRA these are the adapters only; everything that training does not change exists once.
    All access to the network's parameters on behalf of the second set goes through here: under
    sharding they are cached elsewhere, and an exchange of `.data` would silently have no effect.
    An empty set stands for the live weights themselves.
    """

    def __init__(self, model: VisionLanguageModel, *, is_empty: bool = False) -> None:
        self._model = model
        self._is_lent = False
        self._head: Head | None = None
        self._tensors: dict[str, Tensor] = {
            name: parameter.detach().to(torch.float32, copy=True)
            for name, parameter in ({} if is_empty else model.trainable()).items()
        }

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights by the names of the parameters they stand in for."""
        return dict(self._tensors)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy saved values into the set."""
        _copy_into(self._tensors, state, what="teacher")

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let the network compute with this set; the live weights are put back in any case."""
        if self._is_lent:
            raise RuntimeError("These weights are in the network already; lending does not nest.")
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def follow(self, tau: float) -> None:
        """Move towards the live weights: theta-bar <- (1 - tau) theta-bar + tau theta."""
        live = self._model.trainable()
        for name, weight in self._tensors.items():
            weight.lerp_(live[name].detach().to(weight.dtype), tau)

    def head(self) -> HeadWeights | Head:
        """Return this set's projection to logits, valid until the set follows the live weights."""
        head = self._model.head
        own = {
            local: self._tensors[name]
            for name, parameter in self._model.trainable().items()
            for local, candidate in head.named_parameters()
            if parameter is candidate and name in self._tensors
        }
        if (fast := self._model.fast_head) is None:
            return HeadWeights(head, own)
        if not own:
            return fast
        if self._head is None:
            self._head = Head(own["weight"], self._model.precision)
        else:
            self._head.replace(own["weight"])
        return self._head

    def _exchange(self) -> None:
        live = self._model.trainable()
        for name, weight in self._tensors.items():
            self._tensors[name], live[name].data = live[name].data, weight
        self._is_lent = not self._is_lent


class HeadWeights:
    """A projection from hidden states to fp32 logits with weights of its own."""

    def __init__(self, head: nn.Module, own: Mapping[str, Tensor]) -> None:
        self._head, self.own = head, dict(own)

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits in fp32; no gradient reaches the weights."""
        return functional_call(self._head, self.own, (hidden.float(),))


@torch.no_grad()
def _copy_into(
    live: Mapping[str, Tensor] | Mapping[str, nn.Parameter], saved: Mapping[str, Tensor], what: str
) -> None:
    shapes = ({name: t.shape for name, t in tensors.items()} for tensors in (live, saved))
    if next(shapes) != next(shapes):
        missing = sorted(live.keys() - saved.keys())
        raise CheckpointError(
            f"The checkpoint does not hold the {what} of this run"
            + (f": {missing[0]} and {len(missing) - 1} others are missing. " if missing else ". ")
            + "The run cannot resume from it; start over in another run.output."
        )
    for name, tensor in live.items():
        tensor.copy_(saved[name])
