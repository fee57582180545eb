"""The matrix products of a phase alone: the part of its time that nobody can save."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bas_opd.bench.sides import Side
from bas_opd.model.vlm import VisionLanguageModel


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """A linear layer that was applied, and which gradients it has."""

    weight: Tensor
    rows: int
    has_input_gradient: bool
    has_weight_gradient: bool


def floor(
    model: VisionLanguageModel, run: Callable[[], int], *, limit: Callable[[], int] | None = None
) -> Side:
    """Return the products of the linear layers that `run` applies, forward and backward.

    They are recorded in the first run, the warm-up. `limit` returns the tokens of a batch.
    """
    recorded: list[Callable[[], int]] = []

    def multiply() -> int:
        if not recorded:
            recorded.append(_products(model, run, limit or (lambda: 0)))
        return recorded[0]()

    return Side(name="matrix products alone", run=multiply, is_floor=True, limit=limit)


def _products(
    model: VisionLanguageModel, run: Callable[[], int], limit: Callable[[], int]
) -> Callable[[], int]:
    """Return what makes the products that `run` makes where memory does not run out."""
    before, (found, tokens) = limit(), _recorded(model, run)
    while limit() < before:  # Those of the batch that did not fit are among them.
        before, (found, tokens) = limit(), _recorded(model, run)
    # As they are in the computation; weights that are kept in fp32 are rounded beforehand.
    weights = {id(each.weight): each.weight.detach().to(model.precision) for each in found}
    shapes = {(each.rows, each.weight.shape[1]) for each in found}
    kind: dict[str, Any] = {"device": model.device, "dtype": model.precision}
    inputs = {shape: torch.randn(shape, **kind) for shape in shapes}

    def multiply() -> int:
        for each in found:
            weight, rows = weights[id(each.weight)], inputs[each.rows, each.weight.shape[1]]
            output = torch.mm(rows, weight.T)
            if each.has_input_gradient:
                torch.mm(output, weight)
            if each.has_weight_gradient:
                torch.mm(output.T, rows)
        return tokens

    return multiply


def _recorded(model: VisionLanguageModel, run: Callable[[], int]) -> tuple[list[_Product], int]:
    """Return the linear layers that `run` applies, and what it returns."""
    found: list[_Product] = []

    def record(layer: nn.Module, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        assert isinstance(layer, nn.Linear)
        learns, given = torch.is_grad_enabled(), inputs[0]
        found.append(
            _Product(
                weight=layer.weight,
                rows=given.numel() // given.shape[-1],
                has_input_gradient=learns and given.requires_grad,
                has_weight_gradient=learns and layer.weight.requires_grad,
            )
        )

    layers = [each for each in model.network.modules() if isinstance(each, nn.Linear)]
    hooks = [layer.register_forward_hook(record) for layer in layers]
    fast, model.fast_head = model.fast_head, None  # It would not be seen.
    try:
        return found, run()
    finally:
        model.fast_head = fast
        for hook in hooks:
            hook.remove()
