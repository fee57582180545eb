"""Sets of trainable weights: the student's own, and a second set that can stand in for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bas_opd.compute.streaming import HostTensors, visit
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
    All access to the network's parameters on behalf of the second set goes through here. Where
    they are sharded, so is the set: it is gathered in place of the live weights.
    An empty set stands for the live weights themselves. With `offload` the set is kept in host
    memory: a copy is on the device while it is lent, in the room that gradients take later.
    """

    def __init__(
        self, model: VisionLanguageModel, *, is_empty: bool = False, offload: bool = False
    ) -> None:
        self._model = model
        self._is_lent = False
        self._head: Head | None = None
        own = {} if is_empty else model.trainable()
        shapes = {name: parameter.shape for name, parameter in own.items()}
        self._host = HostTensors(shapes, model.device) if offload else None
        self._tensors: dict[str, Tensor] = (
            {name: torch.empty_like(p, dtype=torch.float32) for name, p in own.items()}
            if self._host is None
            else self._host.tensors
        )
        for name, parameter in own.items():
            self._tensors[name].copy_(parameter.detach())

    @property
    def is_offloaded(self) -> bool:
        """Whether the set is in host memory."""
        return self._host is not None

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
        shards, host = self._model.shards, self._host
        if shards is not None:
            weights = self._tensors if host is None else shards.world.surely(host.on_device)
            with self._model.gathered(weights):
                yield
            return
        weights = self._tensors if host is None else host.on_device()
        live = self._model.trainable()
        own = {name: live[name].data for name in weights}
        self._put(weights)
        self._is_lent = True
        try:
            yield
        finally:
            self._put(own)
            self._is_lent = False

    @torch.no_grad()
    def follow(self, tau: float) -> None:
        """Move towards the live weights: theta-bar <- (1 - tau) theta-bar + tau theta."""
        live = self._model.trainable()

        def move(weights: Mapping[str, tuple[Tensor, ...]]) -> None:
            for name, (weight,) in weights.items():
                weight.lerp_(live[name].detach().to(weight.dtype), tau)

        if self._host is None:
            move({name: (weight,) for name, weight in self._tensors.items()})
        else:
            visit([self._host], move)

    def head(self) -> HeadWeights | Head:
        """Return this set's projection to logits, valid until the set follows the live weights.

        Where the set is sharded, every rank must ask.
        """
        head, tensors, shards = self._model.head, self._tensors, self._model.shards
        named = {
            local: name
            for name, parameter in self._model.network.named_parameters()
            for local, candidate in head.named_parameters()
            if parameter is candidate
        }
        if shards is None:
            return self._head_of({n: tensors[name] for n, name in named.items() if name in tensors})
        if self._model.trainable():
            rows, dtype = tensors, torch.float32
        else:
            # A frozen network is not gathered while the student learns; its head must be.
            is_fast = self._model.fast_head is not None
            rows, dtype = shards.rows, self._model.precision if is_fast else torch.float32
        own = {
            local: shards.whole(name, rows[name].detach(), dtype)
            for local, name in named.items()
            if name in rows
        }
        return shards.world.surely(lambda: self._head_of(own))

    def _head_of(self, own: Mapping[str, Tensor]) -> HeadWeights | Head:
        if (fast := self._model.fast_head) is None:
            head, device = self._model.head, self._model.device
            return HeadWeights(head, {local: weight.to(device) for local, weight in own.items()})
        if not own:
            return fast
        if not self._model.trainable():
            return Head(own["weight"], self._model.precision)  # It goes with what was scored.
        if self._head is None:
            self._head = Head(own["weight"], self._model.precision, self._model.device)
        else:
            self._head.replace(own["weight"])
        if self._host is not None:
            self._head.rounded()  # Before other passes: in fp32 it takes room on the device.
        return self._head

    def _put(self, weights: Mapping[str, Tensor]) -> None:
        live = self._model.trainable()
        for name, weight in weights.items():
            live[name].data = weight
        if self._model.fast_head is not None:
            self._model.fast_head.forget()  # Other weights may lie where it last read some.


class HeadWeights:
    """A projection from hidden states to fp32 logits with weights of its own."""

    def __init__(self, head: nn.Module, own: Mapping[str, Tensor]) -> None:
        self._head, self.own = head, dict(own)

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits in fp32; no gradient reaches the weights."""
        return functional_call(self._head, self.own, (hidden.float(),))


@torch.no_grad()
def plain_weights(
    network: nn.Module, named: Mapping[str, Tensor] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Yield all weights by the names of a checkpoint; those of adapters are added to copies.

    `named` are used in place of the network's own. A tied weight comes once.
    """
    for name, parameter in network.named_parameters():
        if ".lora_" in name:
            continue
        weight = (named or {}).get(name, parameter).detach()
        layer, is_adapted, kind = name.rpartition(".base_layer.")
        if is_adapted and kind == "weight":
            weight = weight + cast("Any", network.get_submodule(layer)).get_delta_weight("default")
        yield name.removeprefix("base_model.model.").replace(".base_layer.", "."), weight


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
