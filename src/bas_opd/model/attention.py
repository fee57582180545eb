"""Attention of the language model, without copies and masks that it can do without.

- A single query token, as decoding has it: transformers repeats keys and values for every query
  head that shares them, a copy of the entire cache per sampled token. The heads that share a key
  can take the place of query positions instead. On a GPU a kernel of our own reads the cache once,
  as far as a row sees it.
- More tokens on a GPU in half precision: a mask keeps PyTorch from flash attention, and what it
  takes instead prepares itself for milliseconds whenever a batch has a new shape. Padding is before
  or after the tokens of a row, so the places of rows say all that a mask says.
- Pictures on a GPU: small ones together, in one call.

All other calls go to transformers' own function.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function, sdpa_mask

from bas_opd.compute.compiling import (
    computed_in,
    has_kernels,
    is_fast,
    launching_on,
    may_be_fast,
    power_of_two,
)
from bas_opd.model.delta import can_have_kernels

NAME = "sdpa_grouped"
HALF = (torch.bfloat16, torch.float16)
LARGE = 2048
"""Patches of a picture from which it is attended to by itself."""
TILE, STAGES = 32, 3
"""Slots of the cache that a program reads at a time, and how many such reads are under way."""
PROGRAMS, PARTS = 256, 16
"""Programs that keep a large GPU busy, and the most parts of the cache of a row."""
LONGEST = 2**15
"""Slots of the longest cache: a program has all marks of what is seen in registers."""
FEWEST = 16
"""Rows of the smallest product of Triton."""
WIDEST = 256
"""Channels of a head, in flash attention."""
WIDEST_TRAINED = 192
"""The same for a backward pass on other GPUs than those of data centres."""


def register_grouped_attention() -> str:
    """Register the function with transformers and return its name; idempotent."""
    AttentionInterface.register(NAME, grouped_attention)
    # Without a mask function of the same name, padding would silently go unmasked.
    AttentionMaskInterface.register(NAME, rows_or_mask)
    return NAME


class Rows:
    """A causal mask of rows padded before or after their tokens, made only if it is asked for."""

    def __init__(self, make: Callable[[], Tensor | None], shown: Tensor | None) -> None:
        self._make, self._shown = make, shown
        self._starts: dict[int, Tensor] = {}

    @functools.cached_property
    def mask(self) -> Tensor | None:
        """What transformers would have passed on."""
        return self._make()

    def starts(self, rows: int, tokens: int, slots: int, device: torch.device) -> Tensor:
        """Return where the padding of each row starts, its tokens, the next row, and so on.

        A row has `slots` keys, of which the last `tokens` have queries; the starts count queries.
        """
        if tokens not in self._starts:
            first = torch.zeros(rows, dtype=torch.int32, device=device)
            if self._shown is not None:
                first = self._shown[:, :slots].to(torch.uint8).argmax(-1).int()
            padding = (first - (slots - tokens)).clamp_min(0)
            begin = torch.arange(rows, dtype=torch.int32, device=device) * tokens
            starts = torch.stack([begin, begin + padding], dim=1).flatten()
            self._starts[tokens] = F.pad(starts, (0, 1), value=rows * tokens)
        return self._starts[tokens]


def rows_or_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> Any:
    """Return the rows of a causal mask on a GPU, and else transformers' own mask."""
    make = functools.partial(
        sdpa_mask,
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        **options,
    )
    are_rows = (
        may_be_fast()
        and q_length > 1
        and mask_function is causal_mask_function
        and options.get("local_size") is None
        and isinstance(q_offset, int)
        and kv_offset == 0
        and kv_length == q_offset + q_length
    )
    return Rows(make, attention_mask) if are_rows else make()


def grouped_attention(
    module: nn.Module,
    query: Tensor,  # [row, head, token, channel]
    key: Tensor,  # [row, key head, token, channel]
    value: Tensor,
    attention_mask: Tensor | Rows | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend by groups of heads for one token per row, by rows or with sdpa for more."""
    if kwargs.get("cu_seq_lens_q") is not None and kwargs.get("is_causal") is False:
        return attend_to_pictures(module, query, key, value, scaling=scaling, **kwargs), None
    rows, heads, tokens, channels = query.shape
    if isinstance(attention_mask, Rows):
        if not kwargs.get("dropout") and _has_flash(query, key, value):
            return flash_attention(query, key, value, attention_mask, scaling), None
        attention_mask = attention_mask.mask
    if tokens > 1 or attention_mask is None or kwargs.get("dropout"):
        return sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,  # pyright: ignore[reportArgumentType]
            scaling=scaling,
            **kwargs,
        )
    groups = query.reshape(rows, key.shape[1], heads // key.shape[1], channels)
    if _has_own(groups, key, value, attention_mask):
        mixed = attend_one(groups, key, value, attention_mask, scaling)
    else:
        mixed = F.scaled_dot_product_attention(
            groups, key, value, attn_mask=attention_mask, scale=scaling
        )
    return mixed.reshape(rows, 1, heads, channels), None


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, rows: Rows, scaling: float | None
) -> Tensor:
    """Attend causally within rows by PyTorch's flash attention; return `[row, token, head, ...]`.

    Padding attends to padding, which nothing reads.
    """
    sizes = (query.shape[2], key.shape[2])
    starts = [rows.starts(len(query), size, sizes[1], query.device) for size in sizes]
    return _flash(query, key, value, starts, sizes, scaling, is_causal=True)


def attend_to_pictures(
    module: nn.Module,
    query: Tensor,  # [1, head, patch, channel]
    key: Tensor,
    value: Tensor,
    *,
    cu_seq_lens_q: Any,
    scaling: float | None = None,
    **kwargs: Any,
) -> Tensor:
    """Attend within each picture, or each window; return `[1, patch, head, channel]`.

    Small ones are attended to in one call. For large ones sdpa has a faster kernel, one by one.
    """
    lengths = (cu_seq_lens_q[1:] - cu_seq_lens_q[:-1]).tolist()
    if (
        query.shape[2] < LARGE * len(lengths)
        and not kwargs.get("dropout")
        and _has_flash(query, key, value)
    ):
        places = cu_seq_lens_q.int().to(query.device, non_blocking=True)
        sizes = (max(lengths), max(lengths))
        return _flash(query, key, value, [places, places], sizes, scaling, is_causal=False)
    for name in ("cu_seq_lens_k", "max_length_q", "max_length_k"):
        kwargs.pop(name, None)
    attend: Any = sdpa_attention_forward
    parts = zip(*[x.split(lengths, dim=2) for x in (query, key, value)], strict=True)
    each = [attend(module, q, k, v, None, scaling=scaling, **kwargs)[0] for q, k, v in parts]
    return torch.cat(each, dim=1)


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Sequence[Tensor],
    longest: tuple[int, int],
    scaling: float | None,
    *,
    is_causal: bool,
) -> Tensor:
    rows, heads, tokens, channels = query.shape
    packed = [x.transpose(1, 2).flatten(0, 1).to(computed_in(query)) for x in (query, key, value)]
    out = flash_forward()(*packed, *starts, *longest, 0.0, is_causal, False, scale=scaling)[0]
    return out.view(rows, tokens, heads, channels)


def attend_one(
    query: Tensor, key: Tensor, value: Tensor, seen: Tensor, scaling: float | None
) -> Tensor:
    """Attend for one token: queries `[row, key head, group, channel]`, `seen` `[row, 1, 1, slot]`.

    Each row sees a slot.
    """
    rows, heads, group, channels = query.shape
    slots, parts = key.shape[2], _parts(rows * heads)
    query, out = query.to(key.dtype).contiguous(), torch.empty_like(query, dtype=key.dtype)
    totals, tops, masses = out, out, out  # With one part, what is written is whole.
    if parts > 1:
        totals = query.new_empty(rows, heads, parts, group, channels, dtype=torch.float32)
        tops, masses = (totals.new_empty(totals.shape[:-1]) for _ in range(2))
    seen = seen.view(torch.uint8)
    with launching_on(query):
        _kernels().attend[(rows * heads, parts)](
            *(query, key, value, seen, totals, tops, masses, slots, heads),
            *(*key.stride()[:3], *value.stride()[:3], seen.stride(0)),
            channels**-0.5 if scaling is None else scaling,
            group=group,
            many=max(FEWEST, power_of_two(group)),
            width=channels,
            tile=TILE,
            all_slots=power_of_two(slots),
            parts=parts,
            num_stages=STAGES,
        )
        if parts > 1:
            _kernels().join_parts[(rows * heads * group,)](
                totals, tops, masses, out, group=group, width=channels, parts=parts
            )
    return out


def _parts(programs: int) -> int:
    """Return in how many parts slots are read: a power of two, more for fewer programs."""
    return min(PARTS, 1 << (max(1, PROGRAMS // programs).bit_length() - 1))


def _has_flash(query: Tensor, key: Tensor, value: Tensor) -> bool:
    channels = query.shape[-1]
    if (
        not is_fast(query.device)
        or computed_in(query) not in HALF
        or channels > WIDEST
        or channels % 8
        or torch.version.hip is not None
        or not torch.backends.cuda.is_flash_attention_available()
    ):
        return False
    capability = torch.cuda.get_device_capability(query.device)
    is_large = capability in ((8, 0), (9, 0), (10, 0))
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    return capability >= (8, 0) and (is_large or not learns or channels <= WIDEST_TRAINED)


def _has_own(query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> bool:
    channels = query.shape[-1]
    return (
        has_kernels(query.device)
        and not torch.is_grad_enabled()
        and key.dtype in HALF
        and seen.dtype is torch.bool
        and FEWEST <= channels <= WIDEST
        and channels & (channels - 1) == 0
        and key.stride(-1) == value.stride(-1) == 1
        and key.shape[2] <= LONGEST
        and can_have_kernels(query.device)
    )


def flash_forward() -> Any:
    """Return PyTorch's operation, which takes rows of different lengths."""
    return torch.ops.aten._flash_attention_forward


@functools.cache
def _kernels() -> Any:
    return importlib.import_module("bas_opd.model.triton_attention")
