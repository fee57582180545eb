"""Linear attention of Qwen3.5 on a GPU: the gated delta rule in chunks, with its own backward pass.

With state S, decay a, key k, value v and strength b, each token does
S <- a S + k (b (v - (a S)^T k))^T and reads S^T q. Within a chunk all tokens are computed together;
only the state goes from chunk to chunk, with three kernels a chunk in either direction.
transformers' reference does the same, but records every small operation of that loop for autograd,
which is slow on a GPU. `fused_delta` does it in seven kernels.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from bas_opd.compute.compiling import has_kernels, is_fast
from bas_opd.model.fused_delta import CHUNK, EPSILON, can_fuse, fits, fused_delta_rule
from bas_opd.model.replacing import qwen35_layers, replace, standing_for

FIRST_SOUND_TRITON = (3, 7, 1)
"""Before it, fla's backward pass is compiled wrongly on Hopper GPUs."""
AMPERE, HOPPER = 8, 9
"""Generations of GPUs, as CUDA counts them."""
FUNCTION = "torch_chunk_gated_delta_rule"
STEP = "torch_recurrent_gated_delta_rule"


Way = Literal["reference", "chunked", "triton"]


def chunked_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = CHUNK,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute what the function of the same arguments in transformers does, in fp32.

    `[batch, token, head, width]` for queries, keys and values, `[batch, token, head]` for the
    logarithm of the decay and the strength, `[batch, head, key, value]` for the states.
    """
    batch, length, heads, width = query.shape
    precision = torch.promote_types(query.dtype, torch.float32)
    q, k, v, b, log_decay = (
        _in_chunks(x.to(precision), chunk_size) for x in (query, key, value, beta, g)
    )
    if use_qk_l2norm_in_kernel:
        q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPSILON) for x in (q, k))
    q = q * width**-0.5
    since_start = log_decay.cumsum(-1)
    later = torch.ones(chunk_size, chunk_size, dtype=torch.bool, device=q.device).triu(1)
    between = since_start[..., :, None] - since_start[..., None, :]
    between = between.masked_fill(later, float("-inf")).exp()

    strong = k * b[..., None]
    system = (strong @ k.mT) * between
    wanted = torch.cat([v * b[..., None], strong * since_start.exp()[..., None]], dim=-1)
    solved = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    written, read = solved.split([v.shape[-1], width], dim=-1)

    if initial_state is None:
        state = q.new_zeros(batch * heads, width, v.shape[-1])
    else:
        state = initial_state.to(precision).flatten(0, 1)
    kept = k * (since_start[..., -1:] - since_start).exp()[..., None]
    decay = since_start[..., -1].exp()[..., None, None]
    states, corrections = _Scan.apply(read, written, kept, decay, state)
    found = (q * since_start.exp()[..., None]) @ states[:-1]
    found = found + ((q @ k.mT) * between) @ corrections

    out = found.unflatten(1, (batch, heads)).permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :length]
    last = states[-1].unflatten(0, (batch, heads)) if output_final_state else None
    if last is not None and not torch.is_grad_enabled():
        last = last.clone()  # A view would keep the states of all chunks.
    return out.to(query.dtype, memory_format=torch.contiguous_format), last


def _in_chunks(x: Tensor, size: int) -> Tensor:
    """Return `[batch, token, head, ...]` as `[chunk, batch * head, token, ...]`, padded with 0."""
    spare = -x.shape[1] % size
    x = torch.nn.functional.pad(x, (0, 0) * (x.dim() - 2) + (0, spare))
    x = x.unflatten(1, (-1, size)).movedim(1, 0).movedim(3, 2)  # [chunk, batch, head, token, ...]
    return x.contiguous().flatten(1, 2)


class _Scan(torch.autograd.Function):
    """Carries the state through the chunks.

    With S the state before a chunk: correction = written - read S, and after it a S + kept^T
    correction. Returns the states, the last one included, and the corrections.
    """

    @staticmethod
    def forward(
        ctx: Any, read: Tensor, written: Tensor, kept: Tensor, decay: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        states = state.new_empty(len(read) + 1, *state.shape)
        states[0] = state
        corrections = torch.empty_like(written)
        for chunk in range(len(read)):
            before, after = states[chunk], states[chunk + 1]
            torch.baddbmm(written[chunk], read[chunk], before, alpha=-1, out=corrections[chunk])
            torch.mul(before, decay[chunk], out=after)
            after.baddbmm_(kept[chunk].mT, corrections[chunk])
        ctx.save_for_backward(read, kept, decay, states, corrections)
        return states, corrections

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        read, kept, decay, states, corrections = ctx.saved_tensors
        of_states, of_corrections = gradients
        flow = torch.empty_like(states)  # what reaches each state, from later chunks too
        flow[-1] = of_states[-1]
        back = torch.empty_like(corrections)
        for chunk in reversed(range(len(read))):
            after, before = flow[chunk + 1], flow[chunk]
            torch.baddbmm(of_corrections[chunk], kept[chunk], after, out=back[chunk])
            torch.addcmul(of_states[chunk], decay[chunk], after, out=before)
            before.baddbmm_(read[chunk].mT, back[chunk], alpha=-1)
        of_read = -(back @ states[:-1].mT)
        of_kept = corrections @ flow[1:].mT
        of_decay = (states[:-1] * flow[1:]).sum((-2, -1), keepdim=True)
        return of_read, back, of_kept, of_decay, flow[0]


def register_delta_rule() -> None:
    """Let layers with linear attention, where they are loaded, choose their implementation."""
    replace(qwen35_layers(), FUNCTION, _choosing)
    replace(qwen35_layers(), STEP, _choosing_step)


def implementation(device: torch.device, *, learns: bool) -> str:
    """Return what computes linear attention: `reference`, `chunked`, `triton` or `fla`.

    On a CPU, or with reference kernels, it is transformers' reference. On a GPU it is
    flash-linear-attention where it is installed and sound, which its backward pass is not on Hopper
    with Triton before 3.7.1. Else it is what `own_kernels` returns.
    """
    if not is_fast(device):
        return "reference"
    if not _has_fla():
        return own_kernels(device)
    is_hopper = torch.cuda.get_device_capability(device)[0] == HOPPER
    is_unsound = learns and is_hopper and _triton() < FIRST_SOUND_TRITON
    return own_kernels(device) if is_unsound else "fla"


def own_kernels(device: torch.device) -> Literal["chunked", "triton"]:
    """Return how a GPU computes linear attention without flash-linear-attention."""
    return "triton" if can_have_kernels(device) and has_kernels(device) else "chunked"


def can_have_kernels(device: torch.device) -> bool:
    """Whether our Triton kernels are made for a GPU; `has_kernels` tries whether Triton works.

    They need Ampere or newer, for their shared memory, and products that Triton does not have on
    AMD's GPUs.
    """
    return torch.version.hip is None and torch.cuda.get_device_capability(device)[0] >= AMPERE


@functools.cache
def _has_fla() -> bool:
    """Return whether flash-linear-attention can be used; said once if it is there and cannot."""
    if importlib.util.find_spec("fla") is None:
        return False
    try:
        return hasattr(
            importlib.import_module("fla.ops.gated_delta_rule"), "chunk_gated_delta_rule"
        )
    except Exception as error:  # transformers would silently compute without it.
        logging.getLogger(__name__).warning(
            "flash-linear-attention is installed but cannot be imported, so linear attention is "
            "computed without it (%s: %s). Reinstall it, or remove it.",
            type(error).__name__,
            error,
        )
        return False


@functools.cache
def _triton() -> tuple[int, ...]:
    version = importlib.metadata.version("triton")
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


@contextmanager
def computing(way: Way) -> Iterator[None]:
    """Let layers compute in one way, whatever the device; nothing is launched for fake tensors."""
    register_delta_rule()
    module = qwen35_layers()
    before: Any = getattr(module, FUNCTION, None)
    if module is None or before is None:
        yield
        return
    setattr(module, FUNCTION, standing_for(before.reference, _choosing(before.reference, way)))
    try:
        yield
    finally:
        setattr(module, FUNCTION, before)


def _choosing(reference: Callable[..., Any], way: Way | None = None) -> Callable[..., Any]:
    known = frozenset(inspect.signature(chunked_delta_rule).parameters)
    plain = inspect.unwrap(reference)  # transformers wraps it so that fla replaces it.

    def run(query: Tensor, key: Tensor, value: Tensor, *inputs: Any, **options: Any) -> Any:
        given = (query, key, value, *inputs)
        learns = torch.is_grad_enabled() and query.requires_grad
        # Rows packed end to end are kept apart by fla alone; without it, the reference says so.
        is_packed = options.get("cu_seqlens") is not None
        chosen = way or implementation(query.device, learns=learns)
        used = {name: option for name, option in options.items() if name in known}
        if chosen == "reference" and not is_packed:
            return plain(*given, **used)
        if is_packed or chosen not in ("chunked", "triton"):
            return reference(*given, **options)
        fuses = chosen == "triton" and (fits if way else can_fuse)(query, value)
        with torch.autocast(query.device.type, enabled=False):
            return (fused_delta_rule if fuses else chunked_delta_rule)(*given, **used)

    return run


def _choosing_step(reference: Callable[..., Any]) -> Callable[..., Any]:
    """Take transformers' own function where its wrapper would take flash-linear-attention's."""
    known = frozenset(inspect.signature(chunked_delta_rule).parameters)
    plain = inspect.unwrap(reference)

    def run(query: Tensor, *inputs: Any, **options: Any) -> Any:
        if is_fast(query.device) or options.get("cu_seqlens") is not None:
            return reference(query, *inputs, **options)
        used = {name: option for name, option in options.items() if name in known}
        return plain(query, *inputs, **used)

    return run
