"""Whether vLLM computes with the weights that it was sent, however little they have changed.

A small step changes log-probs by less than bfloat16 rounds. So the weights themselves are compared,
by a sum of hashes of their values. It is the same in any order, with padding by zeros, and for the
parts that vLLM joins into one tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

# Multipliers of the finalizer of MurmurHash3, as signed 32-bit integers.
FIRST = 0x85EBCA6B - 2**32
SECOND = 0xC2B2AE35 - 2**32
VALUES_AT_ONCE = 2**20
"""Values that are hashed at once."""
INPUTS_AT_ONCE = 256
"""Inputs of a layer whose weights are read at once."""


@torch.no_grad()
def content(values: Tensor, dtype: torch.dtype) -> int:
    """Return a number of what a tensor holds, rounded to a precision. Zeros add nothing."""
    total = 0
    for some in values.reshape(-1).split(VALUES_AT_ONCE):
        bits = (some.to(dtype).float() + 0.0).view(torch.int32)  # -0 becomes 0.
        total += int(_hashed(bits).sum())
    return total


def _hashed(bits: Tensor) -> Tensor:
    """Return another number for each, and 0 for 0, in the place of the bits."""
    bits ^= _shifted(bits, 16)
    bits *= FIRST
    bits ^= _shifted(bits, 13)
    bits *= SECOND
    bits ^= _shifted(bits, 16)
    return bits


def _shifted(bits: Tensor, by: int) -> Tensor:
    """Shift right as if unsigned."""
    return (bits >> by).bitwise_and_(2 ** (32 - by) - 1)


def counted(
    weights: Iterable[tuple[str, Tensor]], sent: dict[str, int], dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights, and note in `sent` what each holds."""
    for name, weight in weights:
        sent[name] = content(weight, dtype)
        yield name, weight


@torch.no_grad()
def wrong_weights(model: Any, sent: Mapping[str, int], dtype: torch.dtype, head: type) -> list[str]:
    """Return the names of vLLM's weights that are not what was sent; `head` is its class of heads.

    On a CPU most layers keep a packed copy of their weights only, and a head computes with one.
    Such copies are read from what the layer computes.
    """
    expected = Counter[str]()
    for name, number in sent.items():
        if (own := _name(model, name)) is not None:
            expected[own] += number
    names = {id(weight): name for name, weight in model.named_parameters()}
    wrong = sorted(expected.keys() ^ set(names.values()))
    for place, layer in model.named_modules():
        for local, weight in layer.named_parameters(recurse=False):
            is_packed = local == "weight" and hasattr(layer, "cpu_linear")
            is_read = is_packed and (isinstance(layer, head) or not weight.numel())
            parts = _read(layer, weight) if is_read else [weight]
            held = sum(content(part, dtype) for part in parts)
            if held != expected[names[id(weight)]]:
                wrong.append(f"{place}.{local}".lstrip("."))
    return list(dict.fromkeys(wrong))


def _name(model: Any, name: str) -> str | None:
    """Return vLLM's name of a weight, which joined parts share; None if vLLM does not use it."""
    for joined, parts in model.packed_modules_mapping.items():
        for part in parts:
            name = name.replace(f".{part}.", f".{joined}.")
    return model.hf_to_vllm_mapper.map_name(name)


def _read(layer: Any, weight: Tensor) -> Iterator[Tensor]:
    """Yield the weights of some inputs of a layer at a time: its outputs where one input is 1."""
    inputs = weight.shape[1] if weight.numel() else layer.input_size
    for some in torch.arange(inputs).split(INPUTS_AT_ONCE):
        yield layer.quant_method.apply(layer, F.one_hot(some, inputs).to(weight.dtype))
