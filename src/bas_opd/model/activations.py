"""What passes keep, for their backward pass or in caches, counted on tensors without memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForImageTextToText

from bas_opd.model.attention import register_grouped_attention
from bas_opd.model.cache import cache_bytes, empty_cache
from bas_opd.model.delta import Way, computing
from bas_opd.model.sharding import narrowed
from bas_opd.model.size import sizing_config

SAMPLE = 128
"""Tokens of the pass that is counted; what is kept grows in proportion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Bytes that a stack of layers keeps for each token."""

    inputs: int
    """The inputs of all layers, and what is kept before and behind them."""
    layer: int
    """The layer that keeps the most."""
    whole: int
    """All that is kept without gradient checkpointing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """Bytes that a model keeps for each token of a micro-batch, and in caches."""

    text: Kept
    image: Kept
    """The vision tower, for each image token of the language model."""
    layers: int
    """Layers of the language model."""
    key_copies: int
    """What attention keeps of a key that is in a cache: one for each query head that shares it."""
    cache_row: int
    """Bytes of the states that decoding keeps for a row, whatever its length."""
    cache_token: int
    """Bytes of the keys and values of each of its tokens."""
    embedding: int
    """Numbers of the embedding."""
    vocabulary: int

    def kept(self, batch: Batch, *, checkpointing: bool, loss: int = 0) -> int:
        """Return the most bytes of a micro-batch, whose loss takes some while all else is kept."""
        text, image, tokens, images = self.text, self.image, batch.tokens, batch.images
        # Each row has the cache of its prompt. There is a longer one after each layer, or there are
        # its gradients.
        caches = batch.rows * (self.cache_row + self.cache_token * batch.prompt)
        longer = caches + self.cache_token * tokens
        copied = longer * self.key_copies
        if not checkpointing:
            return tokens * text.whole + images * image.whole + copied + max(longer, loss)
        # One layer is computed again at a time.
        layer = max(tokens * text.layer + copied // self.layers, images * image.layer, loss)
        return tokens * text.inputs + images * image.inputs + caches + longer + layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a micro-batch has at most."""

    tokens: int
    images: int
    """Of these, tokens of pictures whose vision tower is trained."""
    rows: int = 0
    """Rows that continue the cache of a prompt."""
    prompt: int = 0
    """Tokens of the longest prompt."""


def activations(
    path: str | Path, *, precision: torch.dtype = torch.float32, way: Way = "reference"
) -> Activations:
    """Count what a pass keeps, from the configuration alone.

    `way` is that of linear attention. Adapters and the logits, of which few exist at a time, are
    left out.
    """
    config = sizing_config(path)
    config._attn_implementation = register_grouped_attention()
    with FakeTensorMode():
        network: Any = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
        head, core, tower = network.lm_head, network.model.language_model, network.model.visual
        if precision is not torch.float32:
            known = dict(network.named_parameters())
            for name in narrowed(network, head, precision, known):
                known[name].data = known[name].data.to(precision)
            for weight in tower.patch_embed.parameters():
                weight.data = weight.data.to(precision)
        cache = empty_cache(config, precision)
        with computing(way):
            text = text_kept(core, precision)
            with torch.no_grad():
                _pass(core, precision, past_key_values=cache)
        image = image_kept(tower, precision)
    row = cache_bytes(cache, 0)
    return Activations(
        text=text,
        image=image,
        layers=len(core.layers),
        key_copies=core.config.num_attention_heads // core.config.num_key_value_heads,
        cache_row=row,
        cache_token=cache_bytes(cache, 1) - row,
        embedding=core.embed_tokens.weight.numel(),
        vocabulary=core.config.vocab_size,
    )


def text_kept(core: Any, precision: torch.dtype) -> Kept:
    """Return what a language model keeps for each token of a row."""
    return _counted(core, core.layers, SAMPLE, lambda: _pass(core, precision))


def image_kept(tower: Any, precision: torch.dtype) -> Kept:
    """Return what a vision tower keeps for each image token of one picture."""
    patches = SAMPLE * tower.config.spatial_merge_size**2
    attention = tower.blocks[0].attn
    angles = torch.empty(patches, attention.head_dim)
    # The towers read the lengths of pictures from a tensor, which has no values here.
    lengths = np.array([0, patches])

    def run() -> None:
        with _autocast(precision):
            pixels = tower.patch_embed.proj.weight[0].numel()
            hidden = tower.patch_embed(torch.empty(patches, pixels))
            for block in tower.blocks:
                hidden = block(hidden, cu_seqlens=lengths, position_embeddings=(angles, angles))
            for merge in (tower.merger, *getattr(tower, "deepstack_merger_list", ())):
                merge(hidden)

    hooks = []
    if precision is not torch.float32:  # Autocast computes these in fp32 on a GPU.
        norms = (module for module in tower.modules() if isinstance(module, nn.LayerNorm))
        hooks = [
            norm.register_forward_pre_hook(lambda _, given: (given[0].float(),)) for norm in norms
        ]
    kept = _counted(tower, tower.blocks, SAMPLE, run)
    for hook in hooks:
        hook.remove()
    return kept


def _counted(module: Any, layers: Iterable[Any], tokens: int, run: Callable[[], None]) -> Kept:
    # Tensors are kept here, so that no address is used twice.
    held: dict[int, Tensor] = {_place(p): p for p in module.parameters()}
    inputs: list[int] = []
    beside, sizes = 0, [0]
    is_inside = False

    def begin(_: Any, arguments: Sequence[Any]) -> None:
        nonlocal is_inside
        is_inside = True
        inputs.append(arguments[0].nbytes)
        sizes.append(0)

    def end(*_: Any) -> None:
        nonlocal is_inside
        is_inside = False

    def keep(tensor: Tensor) -> Tensor:
        nonlocal beside
        if _place(tensor) not in held:
            held[_place(tensor)] = tensor
            size = tensor.untyped_storage().nbytes()
            sizes[-1] += size * is_inside
            beside += size * (not is_inside)
        return tensor

    hooks = [layer.register_forward_pre_hook(begin) for layer in layers]
    hooks += [layer.register_forward_hook(end) for layer in layers]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run()
    for hook in hooks:
        hook.remove()
    return Kept(
        inputs=(sum(inputs) + beside) // tokens,
        layer=max(sizes) // tokens,
        whole=(sum(sizes) + beside) // tokens,
    )


def _autocast(precision: torch.dtype) -> Any:
    is_mixed = precision is not torch.float32
    return torch.autocast("cpu", dtype=torch.bfloat16 if is_mixed else None, enabled=is_mixed)


def _pass(core: Any, precision: torch.dtype, **cache: Any) -> None:
    with _autocast(precision):
        core(
            inputs_embeds=torch.empty(1, SAMPLE, core.config.hidden_size, requires_grad=True),
            position_ids=torch.zeros(3, 1, SAMPLE, dtype=torch.long),
            use_cache=bool(cache),
            **cache,
        )


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
