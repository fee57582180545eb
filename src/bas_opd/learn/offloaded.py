"""AdamW whose moments are kept in host memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bas_opd.compute.streaming import HostTensors, visit
from bas_opd.learn.adamw import move

MOMENTS = ("exp_avg", "exp_avg_sq")


class OffloadedAdamW(torch.optim.AdamW):
    """torch's AdamW, run on one piece of the parameters after another.

    The moments of a piece come to the device for its step. The numbers are those of
    `torch.optim.AdamW`, bit for bit: its arithmetic is by element. A step that fails has changed
    some parameters and not others.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], **options: Any) -> None:
        super().__init__(parameters, **options)
        self._parameters = list(parameters)
        self._moments: tuple[HostTensors[int], ...] = ()

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take a step with the gradients of the parameters; one without a gradient stays."""
        (group,) = self.param_groups
        for number, parameter in enumerate(self._parameters):
            if parameter.grad is not None and not self.state.get(parameter):
                self._begin(number, torch.zeros(()))

        def work(piece: dict[int, tuple[Tensor, ...]]) -> None:
            used = {
                self._parameters[number]: moments
                for number, moments in piece.items()
                if self._parameters[number].grad is not None
            }
            move(
                group,
                list(used),
                [p.grad for p in used if p.grad is not None],
                [first for first, _ in used.values()],
                [second for _, second in used.values()],
                [self.state[p]["step"] for p in used],
            )

        if self._moments:
            visit(self._moments, work)

    def restore(self, state: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Continue from saved moments, by the number of the parameter."""
        self.state.clear()
        for host in self._moments:
            host.flat.zero_()
        for number, saved in state.items():
            own = self._begin(number, saved["step"])
            for moment in MOMENTS:
                own[moment].copy_(saved[moment])

    def _begin(self, number: int, step: Tensor) -> dict[str, Tensor]:
        """Give a parameter its state, with moments as they are in host memory."""
        parameter = self._parameters[number]
        if not self._moments:
            shapes = {n: p.shape for n, p in enumerate(self._parameters)}
            self._moments = tuple(HostTensors(shapes, parameter.device) for _ in MOMENTS)
        # As torch has it: a fused step counts on the device.
        device = parameter.device if self.param_groups[0]["fused"] else torch.device("cpu")
        self.state[parameter] = {
            "step": step.to(device, torch.float32, copy=True),
            **{m: host.tensors[number] for m, host in zip(MOMENTS, self._moments, strict=True)},
        }
        return self.state[parameter]
