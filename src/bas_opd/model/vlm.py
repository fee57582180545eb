"""The model as the stages use it: prefill a prompt once, continue it for many responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, GenerationConfig

from bas_opd import disk
from bas_opd.compute.compiling import is_fast
from bas_opd.compute.world import World
from bas_opd.model.batches import of_like_length
from bas_opd.model.cache import empty_cache, join_rows, take_rows
from bas_opd.model.delta import register_delta_rule
from bas_opd.model.delta_step import register_delta_step
from bas_opd.model.fused import register_fused_parts, round_inputs_of_linears
from bas_opd.model.head import Head, plain_head
from bas_opd.model.precision import hold_frozen_linears, keep_recurrences_in_fp32
from bas_opd.model.processing import Processor
from bas_opd.model.rounded import RoundedLinears
from bas_opd.model.sharding import Shards
from bas_opd.types import DistantPrompt, Prompt

T = TypeVar("T")
PART_TOKENS = 2048
"""Tokens of padding that are worth another pass, on a GPU."""
AnyPrompt = Prompt | DistantPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """Prefilled prompts: the cache to continue from, and the hidden state of the last token."""

    cache: DynamicCache
    mask: Tensor | None  # [row, token], absent when nothing is padded
    next_position: Tensor  # [row]
    last_hidden: Tensor  # [row, hidden]

    def rows(self, index: Tensor) -> Prefix:
        """Return the prefix of the given rows, which may repeat."""
        return Prefix(
            cache=take_rows(self.cache, index),
            mask=None if self.mask is None else self.mask[index],
            next_position=self.next_position[index],
            last_hidden=self.last_hidden[index],
        )

    @classmethod
    def joined(cls, parts: Sequence[Prefix]) -> Prefix:
        """Return the rows of several prefixes, one after another; their lengths may differ."""
        if len(parts) == 1:
            return parts[0]
        longest = max(part.cache.get_seq_length() for part in parts)
        masks = [part.shown() for part in parts]
        padded = [F.pad(mask, (longest - mask.shape[1], 0)) for mask in masks]
        return cls(
            cache=join_rows([part.cache for part in parts]),
            mask=torch.cat(padded),
            next_position=torch.cat([part.next_position for part in parts]),
            last_hidden=torch.cat([part.last_hidden for part in parts]),
        )

    def shown(self) -> Tensor:
        """Return the mask, all ones where nothing is padded."""
        if self.mask is not None:
            return self.mask
        shape = (len(self.last_hidden), self.cache.get_seq_length())
        return torch.ones(shape, dtype=torch.long, device=self.last_hidden.device)


class VisionLanguageModel:
    """One network with its processor: fp32 parameters, computed in `precision`.

    `device` is where it computes, if its weights are elsewhere until they are sharded.
    """

    def __init__(
        self,
        network: nn.Module,
        processor: Processor,
        *,
        precision: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        self.network = network
        self.processor = processor
        self.precision = precision
        # peft injects its adapters into the modules it wraps, so the base network runs them.
        self._core: Any = getattr(network, "get_base_model", lambda: network)()
        self.device: torch.device = device or next(network.parameters()).device
        self.shards: Shards | None = None
        """The parameters, where they are spread over the processes of a run."""
        self.fast_head: Head | None = None
        """The head in half precision on a GPU; None where it is computed in fp32."""
        weight = plain_head(self.head)
        if precision is not torch.float32 and is_fast(self.device) and weight is not None:
            self.fast_head = Head(weight, precision, self.device)
        register_delta_rule()
        register_delta_step()
        register_fused_parts()
        round_inputs_of_linears(network)
        if precision is not torch.float32:
            keep_recurrences_in_fp32()
            hold_frozen_linears(network, self.head, precision)

    def shard(self, world: World, *, by_layer: bool = False, on_host: bool = False) -> None:
        """Spread the parameters over the processes of a run; call it before any stage is built.

        With `by_layer` passes that learn gather one layer after another. With `on_host` a frozen
        network is kept in host memory, and every pass does so; one process may be all there are.
        """
        self.shards = Shards(
            self.network,
            self.head,
            self.precision,
            world,
            by_layer=by_layer,
            host_for=self.device if on_host else None,
        )
        if on_host:
            self.network.to(self.device)  # Its buffers: what is no parameter is always there.

    def gathered(
        self, weights: Mapping[str, Tensor] | None = None, *, learns: bool = False
    ) -> AbstractContextManager[None]:
        """Hold all weights in the network, or others by their names, while passes run.

        Nothing happens where nothing is spread; then other weights are not allowed. Passes that
        learn run inside `exchanging`, for the layers that are gathered one by one.
        """
        if self.shards is None:
            assert weights is None
            return nullcontext()
        if self.fast_head is not None:
            self.fast_head.forget()  # Other weights will lie where it last read some.
        return self.shards.gathered(weights, learns=learns)

    def exchanging(self, work: Callable[[], T], *, share_prompts: bool) -> T:
        """Compute a pass of `response_hidden`; all ranks call it at the same time."""
        if self.shards is None or not self.shards.is_by_layer:
            return work()
        return self.shards.exchanging(work, reads=2 if share_prompts else 1)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return theta: the trainable parameters by name; of sharded ones, this rank's rows."""
        if self.shards is not None:
            return self.shards.trainable()
        return {
            name: parameter
            for name, parameter in self.network.named_parameters()
            if parameter.requires_grad
        }

    def first_rows(self) -> list[int]:
        """Return where the rows of each trainable parameter begin; 0 where it is whole."""
        if self.shards is None:
            return [0] * len(self.trainable())
        return [self.shards.first_row(name, rows) or 0 for name, rows in self.trainable().items()]

    def whole(self, name: str, rows: Tensor) -> Tensor:
        """Return all rows of a tensor that belongs to a parameter; every rank must ask."""
        return rows if self.shards is None else self.shards.whole(name, rows)

    def compute(self) -> AbstractContextManager[Any]:
        """Return the autocast context of the forward passes.

        Autocast caches its casts of trained weights until the context exits, so entering it once
        for many passes without gradients casts each weight once.
        """
        if self.precision is torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.precision)

    def rounded_linears(self) -> RoundedLinears | None:
        """Return copies of the language model's linear weights; None if it computes in fp32."""
        if self.precision is torch.float32:
            return None
        return RoundedLinears(self._core.model.language_model, self.precision)

    @property
    def head(self) -> nn.Module:
        """The projection from hidden states to logits."""
        return self._core.lm_head

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits in fp32; in bf16 they are too coarse to compare two similar models."""
        with torch.autocast(self.device.type, enabled=False):
            if self.fast_head is not None:
                return self.fast_head.logits(hidden)
            return self.head(hidden.float())

    def save(self, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write the network (with LoRA, its adapter) and its processor in transformers format.

        Of a sharded one, `whole_weights` gives the weights.
        """
        network = cast("Any", self.network)
        generation = self._core.generation_config
        # Transformers refuses to save what it has loaded, such as a temperature without do_sample.
        self._core.generation_config = GenerationConfig()
        try:
            disk.by_library(folder, partial(network.save_pretrained, state_dict=weights), folder)
        finally:
            self._core.generation_config = generation
        saved = folder / "generation_config.json"
        if saved.exists():  # Adapters come without one.
            disk.write_file(saved, generation.to_json_string(keys_to_pop=["compile_config"]))
        self.processor.save(folder)

    def whole_weights(self) -> dict[str, Tensor] | None:
        """Return the weights of a sharded network on the host, for the leader; None of others.

        Every rank must ask. A tied weight has its names on one tensor, so it is written once.
        """
        if self.shards is None:
            return None
        by_parameter: dict[int, Tensor] = {}
        for name, parameter in self.network.named_parameters():
            weight = self.shards.whole(name, self.shards.rows[name].detach())
            if self.shards.world.leads:
                by_parameter[id(parameter)] = weight.to("cpu", copy=True)
        named = self.network.named_parameters(remove_duplicate=False)
        return {name: by_parameter[id(p)] for name, p in named if id(p) in by_parameter}

    def prefill(self, prompts: Sequence[AnyPrompt]) -> Prefix:
        """Encode images and prompts once, padded on the left."""
        longest = max(prompt.length for prompt in prompts)
        shape = (len(prompts), longest)
        ids = torch.full(shape, self.processor.pad_id)
        mask = torch.zeros(shape, dtype=torch.long)
        positions = torch.zeros((3, *shape), dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, -prompt.length :] = prompt.input_ids
            mask[row, -prompt.length :] = 1
            positions[:, row, -prompt.length :] = self._positions(prompt)
        cache = empty_cache(self._core.config, self.precision)
        on_device = self._mask_on_device(mask)
        hidden = self._forward(
            ids, positions, on_device, cache=cache, pixels=_pixels(prompts, self.device)
        )
        return Prefix(
            cache=cache,
            mask=on_device,
            next_position=positions.amax(dim=(0, 2)).add(1).to(self.device),
            last_hidden=hidden[:, -1],
        )

    def extend(self, prefix: Prefix, tokens: Tensor) -> tuple[Tensor, Prefix]:
        """Continue every row with its tokens; return their hidden states and the longer prefix.

        The cache is extended in place: the prefix passed in must not be used again.
        """
        rows, new = tokens.shape
        offsets = torch.arange(new, device=self.device)
        positions = (prefix.next_position[:, None] + offsets).expand(3, rows, new)
        mask = prefix.mask
        if mask is not None:
            mask = torch.cat([mask, mask.new_ones(rows, new)], dim=1)
        hidden = self._forward(tokens, positions, mask, cache=prefix.cache)
        longer = replace(
            prefix,
            mask=mask,
            next_position=prefix.next_position + new,
            last_hidden=hidden[:, -1],
        )
        return hidden, longer

    def continued(
        self, cache: DynamicCache, tokens: Tensor, positions: Tensor, seen: Tensor
    ) -> Tensor:
        """Continue every row with one token; return its hidden state.

        `positions` are `[row]`, and `seen` `[row, slot]` says which slots of the cache, which has
        a fixed size, a row attends to.
        """
        where = positions[None, :, None].expand(3, -1, 1)
        return self._forward(tokens[:, None], where, seen[:, None, None], cache=cache)[:, -1]

    @property
    def part_tokens(self) -> int | None:
        """Tokens of padding that are worth one more pass; None where all rows are in one.

        Ranks that gather layers one by one must compute in the same number of passes.
        """
        is_by_layer = self.shards is not None and self.shards.is_by_layer
        return PART_TOKENS if is_fast(self.device) and not is_by_layer else None

    def response_hidden(
        self,
        prompts: Sequence[AnyPrompt],
        prompt_of: Sequence[int],
        responses: Sequence[Tensor],
        *,
        share_prompts: bool = True,
    ) -> Tensor:
        """Return the state that predicts each response token, packed row after row.

        `prompt_of[row]` is the index of the row's prompt in `prompts`. With `share_prompts` a
        prompt is computed once for all its responses; without, every row computes its own copy.
        """
        owners = torch.tensor(list(prompt_of))
        if not share_prompts:
            return self._packed(self._unshared_rows(prompts, owners, responses), responses)
        lengths = [len(response) for response in responses]
        parts = [list(range(len(lengths)))]
        if self.part_tokens is not None:
            parts = of_like_length(lengths, self.part_tokens)
        # Only the rows' own copies of the prompts' caches stay in memory.
        prefix = self.prefill(prompts)
        begun = [prefix.rows(owners[part].to(self.device)) for part in parts]
        del prefix
        found: list[Tensor] = []
        for part in parts:
            some = [responses[row] for row in part]
            found.append(self._packed(self._shared_rows(begun.pop(0), some), some))
        if len(found) == 1:
            return found[0]
        order = torch.cat([torch.full((lengths[row],), row) for part in parts for row in part])
        return torch.cat(found)[order.argsort(stable=True).to(self.device)]

    def _packed(self, hidden: Tensor, responses: Sequence[Tensor]) -> Tensor:
        """Return the states `[row, token]` of valid tokens, row after row."""
        lengths = torch.tensor([len(response) for response in responses])
        valid = torch.arange(hidden.shape[1]) < lengths[:, None]
        return hidden.flatten(0, 1)[valid.flatten().nonzero()[:, 0].to(self.device)]

    def _shared_rows(self, prefix: Prefix, responses: Sequence[Tensor]) -> Tensor:
        first = prefix.last_hidden[:, None]
        longest = max(len(response) for response in responses)
        if longest == 1:
            return first
        # Padding is after the valid tokens, where a causal model cannot see it. A single token
        # would take the decoding path of the linear layers, which writes in place.
        tokens = torch.full((len(responses), max(2, longest - 1)), self.processor.pad_id)
        for row, response in enumerate(responses):
            tokens[row, : len(response) - 1] = response[:-1]
        hidden, _ = self.extend(prefix, tokens.to(self.device))
        return torch.cat([first, hidden], dim=1)

    def _unshared_rows(
        self, prompts: Sequence[AnyPrompt], prompt_of: Tensor, responses: Sequence[Tensor]
    ) -> Tensor:
        owners = [prompts[i] for i in prompt_of.tolist()]
        totals = [
            owner.length + len(response) - 1
            for owner, response in zip(owners, responses, strict=True)
        ]
        shape = (len(owners), max(totals))
        ids = torch.full(shape, self.processor.pad_id)
        mask = torch.zeros(shape, dtype=torch.long)
        positions = torch.zeros((3, *shape), dtype=torch.long)
        for row, (owner, response, total) in enumerate(zip(owners, responses, totals, strict=True)):
            ids[row, : owner.length] = owner.input_ids
            ids[row, owner.length : total] = response[:-1]
            mask[row, :total] = 1
            prompt_positions = self._positions(owner)
            positions[:, row, : owner.length] = prompt_positions
            positions[:, row, owner.length : total] = (
                prompt_positions.max() + 1 + torch.arange(total - owner.length)
            )
        hidden = self._forward(
            ids, positions, self._mask_on_device(mask), pixels=_pixels(owners, self.device)
        )
        longest = max(len(response) for response in responses)
        first = torch.tensor([owner.length - 1 for owner in owners])
        places = (first[:, None] + torch.arange(longest)).clamp_max(shape[1] - 1).to(self.device)
        return hidden.gather(1, places[..., None].expand(-1, -1, hidden.shape[-1]))

    def _forward(
        self,
        ids: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        *,
        cache: DynamicCache | None = None,
        pixels: dict[str, Tensor] | None = None,
    ) -> Tensor:
        return self._core.model(
            input_ids=ids.to(self.device),
            position_ids=positions.to(self.device),
            attention_mask=mask,
            past_key_values=cache,
            use_cache=cache is not None,
            **(pixels or {}),
        ).last_hidden_state

    def _positions(self, prompt: AnyPrompt) -> Tensor:
        """Return the three rotary positions of each prompt token, `[3, token]`."""
        ids = prompt.input_ids[None]
        positions, _ = self._core.model.get_rope_index(
            ids,
            mm_token_type_ids=self.processor.mm_token_type_ids(ids),
            image_grid_thw=prompt.grid,
        )
        return positions[:, 0]

    def _mask_on_device(self, mask: Tensor) -> Tensor | None:
        """Return the mask, or None if nothing is padded and attention can run without."""
        return None if bool(mask.all()) else mask.to(self.device)


def _pixels(prompts: Sequence[AnyPrompt], device: torch.device) -> dict[str, Tensor]:
    return {
        # One by one: a copy of all of them on the host takes longer than the way to the device.
        "pixel_values": torch.cat([p.pixel_values.to(device, non_blocking=True) for p in prompts]),
        "image_grid_thw": torch.cat([prompt.grid for prompt in prompts]).to(device),
    }
