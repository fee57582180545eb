"""The size of a model, counted from its configuration without loading weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForImageTextToText

from bas_opd.compute.eight_bits import is_packed, packed_bytes
from bas_opd.compute.streaming import most_in_flight
from bas_opd.model.family import checkpoint_config
from bas_opd.model.head import plain_head
from bas_opd.model.loading import LoraSettings, with_adapters
from bas_opd.model.precision import hold_frozen_linears


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Number of parameters, and bytes of the weights as stored during training."""

    parameters: int
    trained: int
    weights: int
    casts: int
    """Copies of weights in the compute precision: of trained ones during a pass, and of the heads
    of student and teacher, which are one where the head is not trained."""
    in_flight: int
    """Trained weights whose moments are on the device at once, where these are in host memory."""
    packed_moment: int = 0
    """Bytes of a moment of the trained weights where it is kept in 8 bits."""


def model_size(
    path: str | Path,
    *,
    lora: LoraSettings | None = None,
    precision: torch.dtype = torch.float32,
    frozen: bool = False,
) -> ModelSize:
    """Return the size of the model in a folder or hub id; reads only its configuration."""
    config = checkpoint_config(path)
    with torch.device("meta"):
        network: Any = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
        head = network.lm_head
        if lora is not None:
            network = with_adapters(network, lora)
    if frozen:
        network.requires_grad_(False)
    is_mixed = precision is not torch.float32
    if is_mixed:
        hold_frozen_linears(network, head, precision)
    parameters = list(network.parameters())
    linears = (m for m in network.modules() if isinstance(m, nn.Linear) and m is not head)
    cast = sum(p.numel() for m in linears for p in m.parameters(recurse=False) if p.requires_grad)
    rounded = plain_head(head)
    if rounded is not None:
        cast += rounded.numel() * (2 if rounded.requires_grad else 1)
    return ModelSize(
        parameters=sum(p.numel() for p in parameters),
        trained=sum(p.numel() for p in parameters if p.requires_grad),
        weights=sum(p.numel() * p.element_size() for p in parameters),
        casts=cast * precision.itemsize if is_mixed else 0,
        in_flight=most_in_flight(
            {name: p.numel() for name, p in network.named_parameters() if p.requires_grad}
        ),
        packed_moment=sum(
            packed_bytes(p.shape) if is_packed(p.shape) else 4 * p.numel()
            for p in parameters
            if p.requires_grad
        ),
    )
