"""What passes keep, for their backward pass or in caches, counted on tensors without memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForImageTextToText

from bas_opd.model.attention import register_grouped_attention
from bas_opd.model.cache import cache_bytes, empty_cache
from bas_opd.model.delta import in_chunks
from bas_opd.model.sharding import narrowed
from bas_opd.model.size import sizing_config

SAMPLE = 128
"""Tokens of the pass that is counted; what is kept grows in proportion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """Bytes that the language model keeps for each token of a micro-batch."""

    whole: int
    """Without gradient checkpointing."""
    checkpointed: int
    """With it: the input of each layer, and all of the layer that is computed again."""
    cache_row: int
    """Bytes of the states that decoding keeps for a row, whatever its length."""
    cache_token: int
    """Bytes of the keys and values of each of its tokens."""
    vocabulary: int


def activations(path: str | Path, *, precision: torch.dtype = torch.float32) -> Activations:
    """Count what a pass keeps, from the configuration alone.

    Linear attention is that of a GPU without flash-linear-attention. The vision tower, adapters and
    the logits, of which few exist at a time, are left out.
    """
    config = sizing_config(path)
    config._attn_implementation = register_grouped_attention()
    with FakeTensorMode():
        network: Any = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
        head, core = network.lm_head, network.model.language_model
        if precision is not torch.float32:
            known = dict(network.named_parameters())
            for name in narrowed(network, head, precision, known):
                known[name].data = known[name].data.to(precision)
        cache = empty_cache(config, precision)
        with in_chunks():
            inputs, layers = count_kept(core, core.config.hidden_size, precision)
            with torch.no_grad():
                _pass(core, core.config.hidden_size, precision, past_key_values=cache)
    row = cache_bytes(cache, 0)
    return Activations(
        whole=sum(layers) // SAMPLE,
        checkpointed=(sum(inputs) + max(layers)) // SAMPLE,
        cache_row=row,
        cache_token=cache_bytes(cache, 1) - row,
        vocabulary=core.config.vocab_size,
    )


def count_kept(core: Any, width: int, precision: torch.dtype) -> tuple[list[int], list[int]]:
    """Return the bytes of each layer's input, and of what each layer keeps, for one row."""
    # Tensors are kept here, so that no address is used twice.
    held: dict[int, Tensor] = {_place(p): p for p in core.parameters()}
    inputs: list[int] = []
    layers: list[int] = []

    def begin(_: Any, arguments: tuple[Any, ...]) -> None:
        inputs.append(arguments[0].nbytes)
        layers.append(0)

    def keep(tensor: Tensor) -> Tensor:
        if layers and _place(tensor) not in held:
            held[_place(tensor)] = tensor
            layers[-1] += tensor.untyped_storage().nbytes()
        return tensor

    hooks = [layer.register_forward_pre_hook(begin) for layer in core.layers]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _pass(core, width, precision)
    for hook in hooks:
        hook.remove()
    return inputs, layers


def _pass(core: Any, width: int, precision: torch.dtype, **cache: Any) -> None:
    is_mixed = precision is not torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16 if is_mixed else None, enabled=is_mixed):
        core(
            inputs_embeds=torch.empty(1, SAMPLE, width, requires_grad=True),
            position_ids=torch.zeros(3, 1, SAMPLE, dtype=torch.long),
            use_cache=bool(cache),
            **cache,
        )


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
