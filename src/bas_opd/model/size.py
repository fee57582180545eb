"""The size of a model, counted from its configuration without loading weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedConfig

from bas_opd.compute.eight_bits import moment_bytes
from bas_opd.compute.streaming import most_in_flight
from bas_opd.compute.world import World
from bas_opd.errors import ModelError
from bas_opd.model.family import checkpoint_config
from bas_opd.model.head import plain_head
from bas_opd.model.loading import LoraSettings, with_adapters
from bas_opd.model.precision import hold_frozen_linears
from bas_opd.model.rounded import RoundedLinears
from bas_opd.model.shapes import KNOWN
from bas_opd.model.sharding import Shards, narrowed


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Number of parameters, and bytes of the weights as one process stores them in training."""

    parameters: int
    trained: int
    weights: int
    casts: int
    """Copies of weights in the compute precision: of trained ones during a pass, and of the heads
    of student and teacher, which are one where the head is not trained."""
    in_flight: int
    """Trained weights whose moments are on the device at once, where these are in host memory."""
    own_trained: int
    """Trained weights that this process keeps: all, or its rows of each."""
    packed_moment: int = 0
    """Bytes of a moment of these weights where it is kept in 8 bits."""
    gathered: int = 0
    """Of several processes: the whole network, while a phase computes."""
    pass_weights: int = 0
    """Of several processes: what a pass that learns holds of it at its peak, all or one layer.
    Of a network in host memory: what any pass holds of it."""
    pass_gradients: int = 0
    """Of several processes: gradients of one micro-batch that are on that then."""
    exchanged: int = 0
    """Of several processes: what exchanges take then."""
    rounded: int = 0
    """Copies of the language model's linear weights, with which decoding computes."""
    trains_vision: bool = False
    """Whether any of the vision tower is trained."""
    loading: int = 0
    """Bytes of host memory while the model is loaded: every process reads all of it in fp32."""


def model_size(
    path: str | Path,
    *,
    lora: LoraSettings | None = None,
    precision: torch.dtype = torch.float32,
    frozen: bool = False,
    ranks: int | None = None,
    by_layer: bool = False,
    on_host: bool = False,
) -> ModelSize:
    """Return the size of the model in a folder or hub id; reads only its configuration.

    With `ranks` its parameters are sharded over so many processes, and bytes are those of the
    first, which has the most rows. With `by_layer` passes that learn gather one layer at a time.
    With `on_host` the weights of a frozen model are in host memory; casts are its head then.
    """
    config = sizing_config(path)
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
    named = list(network.named_parameters())
    parameters = [parameter for _, parameter in named]
    loading = sum(p.numel() for p in parameters) * torch.float32.itemsize
    multiplied = plain_head(head)
    trains_head = any(p.requires_grad for p in head.parameters())
    # Where it is not trained, one copy of the head serves student and teacher.
    heads = 0 if multiplied is None else multiplied.numel() * (2 if trains_head else 1)
    rounded = 0
    # Weights of several processes are gathered in half precision already.
    if is_mixed and not (ranks and narrowed(network, head, precision, dict(named))):
        core: Any = getattr(network, "get_base_model", lambda: network)()
        rounded = RoundedLinears(core.model.language_model, precision).size
    if ranks is None and not on_host:
        kept = dict(network.named_parameters())
        linears = (m for m in network.modules() if isinstance(m, nn.Linear) and m is not head)
        own = (p for m in linears for p in m.parameters(recurse=False) if p.requires_grad)
        casts = (sum(p.numel() for p in own) + heads) * precision.itemsize if is_mixed else 0
        spread = {}
    else:
        shards = Shards(
            network,
            head,
            precision,
            World(size=ranks or 1),
            by_layer=by_layer,
            host_for=torch.device("meta") if on_host else None,
        )
        kept = shards.rows
        # The teacher's head is gathered in fp32; that of another model as it is multiplied.
        in_fp32 = trains_head or (frozen and not (is_mixed and heads))
        whole = sum(p.nbytes for p in head.parameters()) if in_fp32 else 0
        casts = whole + (heads * precision.itemsize if is_mixed else 0)
        peak = shards.peak
        if on_host:
            # Linear layers are cast one by one, then all is moved piece by piece.
            cast = max((p.nbytes for p in parameters if p.dtype is not torch.float32), default=0)
            loading = max(loading + cast, shards.moving_bytes)
        spread = {
            "gathered": shards.gathered_bytes,
            "pass_weights": peak.weights,
            "pass_gradients": peak.gradients,
            "exchanged": peak.exchanged,
        }
    trained = {name: p.numel() for name, p in kept.items() if p.requires_grad}
    return ModelSize(
        parameters=sum(p.numel() for p in parameters),
        trained=sum(p.numel() for p in parameters if p.requires_grad),
        weights=sum(p.nbytes for p in kept.values()),
        casts=casts,
        in_flight=most_in_flight(trained),
        own_trained=sum(trained.values()),
        packed_moment=sum(moment_bytes(p.shape) for name, p in kept.items() if name in trained),
        rounded=rounded,
        trains_vision=any(p.requires_grad for n, p in named if ".visual." in n),
        loading=loading,
        **spread,
    )


def sizing_config(path: str | Path) -> PreTrainedConfig:
    """Return the configuration of a model; that of a known one without its files, too."""
    try:
        return checkpoint_config(path)
    except ModelError:
        if str(path) not in KNOWN:
            raise
        return AutoConfig.for_model("qwen3_5", **KNOWN[str(path)])
