"""AdamW whose moments take 8 bits an element."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from bas_opd.compute.eight_bits import is_packed, pack, scale_shape, unpack
from bas_opd.compute.hashing import mix
from bas_opd.learn.adamw import move

PIECE = 2**22
"""Elements whose moments are unpacked at once."""
UNPACKED = 64
"""Bytes for each of them while they move, at most: both in fp32, noise, and what packing takes."""


class EightBitAdamW(torch.optim.AdamW):
    """torch's AdamW on moments that are unpacked for their step and packed after it.

    Kept are the first moment and the root of the second. The second itself would need twice the
    decades: its small elements would become 0 where the first moment's do not, and their ratio is
    the step. Parameters with short rows keep both in fp32, and move as torch moves them.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        *,
        first_rows: Sequence[int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(parameters, **options)
        self._parameters = list(parameters)
        self._first_rows = first_rows or [0] * len(parameters)
        """Where the rows of each begin in the whole parameter, of which a process may have some."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take a step with the gradients of the parameters; one without a gradient stays."""
        (group,) = self.param_groups
        for number, parameter in enumerate(self._parameters):
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                state.update(self._begin(parameter))
            if "root" in state:
                self._move_packed(number, parameter.grad, state)
            else:
                kept = (state[name] for name in ("exp_avg", "exp_avg_sq", "step"))
                move(group, [parameter], [parameter.grad], *([each] for each in kept))

    def restore(self, saved: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Continue from a saved state, by the number of the parameter."""
        self.state.clear()
        for number, values in saved.items():
            parameter = self._parameters[number]
            state = self._begin(parameter)
            for name, value in values.items():
                state[name].copy_(value)
            self.state[parameter].update(state)

    def _begin(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        device, shape = parameter.device, parameter.shape
        # As torch has it: a fused step counts on the device.
        counted = device if self.param_groups[0]["fused"] else torch.device("cpu")
        state = {"step": torch.zeros((), device=counted)}
        if not is_packed(shape):
            state |= {m: torch.zeros_like(parameter) for m in ("exp_avg", "exp_avg_sq")}
            return state
        for name, signed in (("exp_avg", True), ("root", False)):
            level = 127 if signed else 0  # that of 0
            state[name] = torch.full(shape, level, dtype=torch.uint8, device=device)
            state[f"{name}_scale"] = torch.zeros(scale_shape(shape), device=device)
        return state

    def _move_packed(self, number: int, gradient: Tensor, state: Mapping[str, Tensor]) -> None:
        """Move some rows after others, so that few moments are unpacked at a time."""
        (group,) = self.param_groups
        parameter = self._parameters[number]
        rows = max(1, PIECE // max(1, prod(parameter.shape[1:])))
        step = state["step"].clone()
        key = mix(mix(step.to(parameter.device, torch.int64)) + number)
        for start in range(0, len(parameter), rows):
            part = slice(start, start + rows)
            levels, scales = state["exp_avg"][part], state["exp_avg_scale"][part]
            roots, root_scales = state["root"][part], state["root_scale"][part]
            first = unpack(levels, scales, signed=True)
            second = unpack(roots, root_scales, signed=False).square_()
            moved = parameter.detach()[part]
            move(group, [moved], [gradient[part]], [first], [second], [step.clone()])
            one, other = _noise(key, levels, self._first_rows[number] + start)
            for kept, found in zip((levels, scales), pack(first, one, signed=True), strict=True):
                kept.copy_(found)
            packed = pack(second.sqrt_(), other, signed=False)
            for kept, found in zip((roots, root_scales), packed, strict=True):
                kept.copy_(found)
        state["step"].copy_(step + 1)


def _noise(key: Tensor, like: Tensor, first_row: int) -> Iterator[Tensor]:
    """Yield two tensors of noise in [0, 1), a hash of row and column."""
    rows = torch.arange(first_row, first_row + len(like), device=like.device)
    columns = torch.arange(like[0].numel(), device=like.device)
    hashed = mix(mix(key + rows)[:, None] + columns).view(like.shape)
    for bits in (8, 40):
        yield ((hashed >> bits) & (2**24 - 1)).float() * 2.0**-24
