"""The exchanges of a pass that gathers layers one by one.

All ranks make the same exchanges in the same order, whatever they compute. An exchange is due when
this rank needs a layer that comes after it, or when its pass ends. So a rank without rows, without
pictures or with responses of one token makes those of the others, and a rank that fails makes the
rest of them without a gradient: none waits in vain.

While a layer is computed, the weights of the next one are on their way, and in the backward pass
the gradients of the one before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

Act = Callable[[], None]
Begin = Callable[[], Act]
"""Begins an exchange, and returns what ends it. Either may fail and be called again."""
Moment = tuple[Literal["forward", "backward"], nn.Module, int]
"""A layer is needed, in which of its calls in the pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """Layers that a pass computes one after another."""

    layers: tuple[nn.Module, ...]
    learns: bool
    """Whether gradients go through it."""
    is_read_again: bool = True
    """Whether responses go through it too, after their prompts."""
    has_weights_back: bool = True
    """Whether its gradients take its weights."""


def towers_of(network: nn.Module, head: nn.Module) -> tuple[Tower, ...]:
    """Return embedding, vision tower and language model, as a pass comes to them.

    An embedding that is the head, too, is in none: it is needed throughout.
    """
    core: Any = getattr(network, "get_base_model", lambda: network)()
    embedding, visual = core.model.get_input_embeddings(), core.model.visual
    shared = {id(parameter) for parameter in head.parameters()}
    is_apart = all(id(parameter) not in shared for parameter in embedding.parameters())
    return (
        Tower(
            layers=(embedding,) if is_apart else (),
            learns=_learns(embedding),
            has_weights_back=type(embedding) is not nn.Embedding,  # An adapted one takes its own.
        ),
        Tower(layers=_layers(visual), learns=_learns(visual), is_read_again=False),
        # What adapts the vision tower alone gets its gradients through the language model.
        Tower(layers=_layers(core.model.language_model), learns=_learns(network)),
    )


def _learns(part: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in part.parameters())


def _layers(part: nn.Module) -> tuple[nn.Module, ...]:
    return tuple(m for m in part.modules() if isinstance(m, GradientCheckpointingLayer))


def moments_of(towers: Sequence[Tower], reads: int) -> Iterator[tuple[Moment, bool]]:
    """Yield when layers are needed, forward and back, and whether their weights are."""
    calls = [(tower, 0) for tower in towers]
    calls += [(each, n) for n in range(1, reads) for each in towers if each.is_read_again]
    for tower, call in calls:
        for layer in tower.layers:
            yield ("forward", layer, call), True
    for tower, call in reversed([each for each in calls if each[0].learns]):
        for layer in reversed(tower.layers):
            yield ("backward", layer, call), tower.has_weights_back


@dataclass(frozen=True, slots=True)
class Exchanges:
    """What a rank does with one layer; each of the first two meets the other ranks."""

    gather: Sequence[Begin]
    sum: Sequence[Begin]
    """Add the gradients of all ranks, which are on the parameters, to those of the rows."""
    free: Act


class LayerPass:
    """One pass through the towers, in which the language model is read so many times, and back.

    What is summed before it turns back comes in `turning`, what is summed after it in `ending`.
    """

    def __init__(
        self,
        towers: Sequence[Tower],
        exchanges: Mapping[nn.Module, Exchanges],
        turning: Sequence[Begin] = (),
        ending: Sequence[Begin] = (),
        *,
        reads: int,
    ) -> None:
        self._steps: list[Act] = []
        self._done = 0
        self._ready: dict[Moment, int] = {}
        """How many steps are done when a layer is needed."""
        self._calls: Counter[nn.Module] = Counter()
        self._leaves: dict[tuple[nn.Module, int], dict[nn.Parameter, nn.Parameter]] = {}
        self._lent: list[tuple[nn.Module, str, nn.Parameter]] = []
        self._gathers: list[Act] = []
        self._sums: list[Act] = []
        """What ends the exchanges that have begun: of the next layer, and of the one before."""
        moments = list(moments_of(towers, reads))
        gathered = [layer for (_, layer, _), has_weights in moments if has_weights]
        layers = [None, *gathered, None]
        places = iter(zip(layers, layers[1:], layers[2:], strict=False))
        self._begin(self._gathers, exchanges[gathered[0]].gather)
        for (way, layer, call), has_weights in moments:
            before, _, after = next(places) if has_weights else (layer, layer, layer)
            if layer is not before:
                self._end(self._gathers)
            if after is not None and after is not layer:
                self._begin(self._gathers, exchanges[after].gather)
            if way == "backward":
                self._begin(self._sums, turning)
                turning = ()
            self._ready[way, layer, call] = len(self._steps)
            if way == "backward":
                self._steps.append(partial(self._take_gradients, layer, call))
                self._end(self._sums)
                self._begin(self._sums, exchanges[layer].sum)
            if layer is not after:
                self._steps.append(exchanges[layer].free)
        for act in ending:
            self._end(self._sums)
            self._begin(self._sums, [act])
        self._end(self._sums)
        self._layers = tuple(exchanges)

    def _begin(self, begun: list[Act], acts: Sequence[Begin]) -> None:
        """Add steps that begin exchanges."""
        self._steps += [lambda act=act: begun.append(act()) for act in acts]

    def _end(self, begun: list[Act]) -> None:
        """Add a step that ends those that have begun."""

        def end() -> None:
            while begun:
                begun[0]()
                del begun[0]

        self._steps.append(end)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Let every layer have its weights when it is computed, forward and backward."""
        hooks = [
            hook
            for layer in self._layers
            for hook in (
                layer.register_forward_pre_hook(self._before),
                layer.register_forward_hook(self._after),
            )
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            self._return()

    def finish(self) -> None:
        """Make all exchanges that are left."""
        self._advance(len(self._steps))

    def drop(self) -> None:
        """Forget the gradients of calls that failed."""
        self._leaves.clear()

    def _before(self, layer: nn.Module, _: Any) -> None:
        call = self._calls[layer]
        self._reach(("forward", layer, call))
        self._lend(layer, self._leaves.setdefault((layer, call), {}))

    def _after(self, layer: nn.Module, _: Any, output: Tensor | tuple[Tensor, ...]) -> None:
        self._return()
        moment: Moment = ("backward", layer, self._calls[layer])
        self._calls[layer] += 1
        states = output if isinstance(output, Tensor) else output[0]
        if states.requires_grad:
            # Autograd runs what was computed last first. So it has left all layers after this one
            # and is in none before it, and it needs this one now, perhaps to compute it again.
            states.register_hook(lambda _: self._reach(moment))

    def _lend(self, layer: nn.Module, leaves: dict[nn.Parameter, nn.Parameter]) -> None:
        """Let a call compute with leaves of its own, in the memory of the parameters.

        The gradient of a leaf is there after the backward pass of its call. That of a parameter
        would wait for all calls, while every layer's lay in memory.
        """
        for module in layer.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None and parameter.requires_grad:
                    leaf = leaves.setdefault(parameter, nn.Parameter(parameter.detach()))
                    self._lent.append((module, name, parameter))
                    module._parameters[name] = leaf

    def _return(self) -> None:
        while self._lent:
            module, name, parameter = self._lent.pop()
            module._parameters[name] = parameter

    def _take_gradients(self, layer: nn.Module, call: int) -> None:
        for parameter, leaf in self._leaves.pop((layer, call), {}).items():
            parameter.grad, leaf.grad = leaf.grad, None  # The graph still holds the leaf.

    def _reach(self, moment: Moment) -> None:
        if self._ready.get(moment, -1) < self._done:
            way, layer, call = moment
            raise RuntimeError(
                f"The {way} pass came to call {call + 1} of a {type(layer).__name__} when it was "
                "not its turn. The ranks would no longer exchange the same layers."
            )
        self._advance(self._ready[moment])

    def _advance(self, until: int) -> None:
        while self._done < until:
            # One that fails before it has met the others is made again by `finish`.
            self._steps[self._done]()
            self._done += 1
