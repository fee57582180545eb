"""Models as transformers computes them: without our kernels, attention and caches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import DynamicCache

from bas_opd.model.cache import AssignedLinearLayer
from bas_opd.model.replacing import without_replacements


@contextmanager
def as_in_transformers(network: Any) -> Iterator[None]:
    """Let a network compute as it would if only transformers had loaded it."""
    own = network.config._attn_implementation
    network.set_attn_implementation("sdpa")
    try:
        with without_replacements():
            yield
    finally:
        network.set_attn_implementation(own)


def plain_cache(network: Any, cache: DynamicCache, repeats: int = 1) -> DynamicCache:
    """Return transformers' own cache with the states of ours, each row repeated."""
    plain = DynamicCache(config=network.config.get_text_config())
    layers: list[tuple[Any, Any]] = list(zip(plain.layers, cache.layers, strict=True))
    for layer, each in layers:
        if isinstance(each, AssignedLinearLayer):
            for kind in ("conv_states", "recurrent_states"):
                for i, states in getattr(each, kind).items():
                    layer.lazy_initialization(**{kind: states}, state_idx=i)
                    getattr(layer, kind)[i] = states.repeat_interleave(repeats, dim=0)
                    layer.has_previous_state[i] = True
        else:
            layer.lazy_initialization(each.keys, each.values)
            layer.keys, layer.values = (
                states.repeat_interleave(repeats, dim=0) for states in (each.keys, each.values)
            )
    return plain
