"""The likeliest token at every position: how a model answers when it is judged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor

from bas_opd.compute.memory import SETTINGS, in_smaller_batches
from bas_opd.model.vlm import Prefix, VisionLanguageModel
from bas_opd.rollout.decoding import Decoder, groups_of_like_length, suppressed
from bas_opd.types import Hooks, Prompt


class Greedy:
    """Answers with the likeliest token at every position, in smaller batches where memory ends."""

    def __init__(
        self,
        model: VisionLanguageModel,
        *,
        max_response_tokens: int,
        prompts_per_batch: int,
        hooks: Hooks | None = None,
        advice: str = "",
        lower: str = SETTINGS,
    ) -> None:
        """Keep what to say if one prompt alone does not fit: see `in_smaller_batches`."""
        self.model, self.prompts_per_batch = model, prompts_per_batch
        self.hooks = hooks or Hooks()
        self._advice, self._lower = advice or "use a device with more memory", lower
        never = suppressed(model)

        def likeliest(logits: Tensor, _alive: Tensor, _position: Tensor) -> Tensor:
            return logits.index_fill(1, never, -torch.inf).argmax(-1)

        self._decode = Decoder(model, likeliest, limit=max_response_tokens, hooks=self.hooks)

    def __call__(self, prompts: Sequence[Prompt]) -> Iterator[tuple[int, Tensor]]:
        """Yield the place of each prompt and its response, batch by batch, shortest prompts first.

        Prompts with the same pixels are prefilled once as far as they are equal. `poll` is called
        between batches, after every response of the last one was handed over, and while one is
        decoded.
        """
        left = dict(enumerate(prompts))
        most = size = max(1, min(self.prompts_per_batch, len(left)))
        batches = self._batches(left, size)

        def following(limit: int) -> list[tuple[int, Tensor]]:
            nonlocal batches, size
            if limit != size:
                batches, size = self._batches(left, limit), limit
            return next(batches)

        try:
            while left:
                found, _ = in_smaller_batches(
                    following,
                    limit=size,
                    smallest=1,
                    what="evaluation",
                    notice=self.hooks.notice,
                    advice=self._advice,
                    lower=self._lower,
                )
                for place, response in found:
                    del left[place]
                    yield place, response
                self.hooks.poll()
        finally:
            if size < most:  # Memory ran out; a call with few prompts limits no later one.
                self.prompts_per_batch = size
            self._decode.trim()

    @torch.no_grad()
    def _batches(self, left: Mapping[int, Prompt], size: int) -> Iterator[list[tuple[int, Tensor]]]:
        model, places = self.model, list(left)
        beginnings = list(_beginnings(list(left.values()), model.processor.image_id))
        for group in groups_of_like_length([each.prompt for each in beginnings], size):
            some = [beginnings[i] for i in group]
            with model.compute():
                begun = self._decode.prefill([each.prompt for each in some])
            for batch in _rows_of(some, size):
                tokens, lengths = self._decoded(begun, batch)
                yield [
                    (places[asked.place], row[:length])
                    for asked, row, length in zip(
                        batch, tokens.cpu(), lengths.tolist(), strict=True
                    )
                ]

    def _decoded(self, begun: Prefix, batch: Sequence[_Asked]) -> tuple[Tensor, Tensor]:
        try:
            with self.model.compute():
                return self._decode(_continued(self.model, begun, batch))
        except (RuntimeError, MemoryError):  # Memory that ran out is what they hold.
            self._decode.release()
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beginning:
    """What several prompts begin with, or one whole prompt."""

    prompt: Prompt
    rests: Mapping[int, Tensor]
    """Place of a prompt -> its other tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One prompt: a row of the prefilled beginnings, and its other tokens."""

    place: int
    row: int
    rest: Tensor


def _beginnings(prompts: Sequence[Prompt], image_id: int) -> Iterator[_Beginning]:
    same_picture: dict[int, list[int]] = defaultdict(list)
    for place, prompt in enumerate(prompts):
        same_picture[id(prompt.pixel_values)].append(place)
    for places in same_picture.values():
        first = prompts[places[0]]
        ids = {place: prompts[place].input_ids for place in places}
        shared = first.length if len(places) == 1 else _equal_tokens(list(ids.values()))
        if bool((first.input_ids[shared:] == image_id).any()):
            for place in places:  # The template puts the question before the picture.
                yield _Beginning(prompt=prompts[place], rests={place: ids[place][:0]})
        else:
            yield _Beginning(
                prompt=replace(first, input_ids=first.input_ids[:shared]),
                rests={place: tokens[shared:] for place, tokens in ids.items()},
            )


def _equal_tokens(rows: Sequence[Tensor]) -> int:
    """Return how many tokens all rows begin with; the last token of each is not among them."""
    shortest = min(len(row) for row in rows) - 1
    cut = torch.stack([row[:shortest] for row in rows])
    return int((cut == cut[0]).all(0).cumprod(0).sum())


def _rows_of(beginnings: Sequence[_Beginning], size: int) -> Iterator[list[_Asked]]:
    """Yield the prompts that are decoded together, those with rests of like length."""
    asked = [
        _Asked(place=place, row=row, rest=rest)
        for row, beginning in enumerate(beginnings)
        for place, rest in beginning.rests.items()
    ]
    asked.sort(key=lambda each: len(each.rest))
    for start in range(0, len(asked), size):
        yield asked[start : start + size]


def _continued(model: VisionLanguageModel, begun: Prefix, batch: Sequence[_Asked]) -> Prefix:
    """Return the prefix of whole prompts.

    Rests of one length are computed together: linear attention allows no padding behind a picture.
    """
    if [asked.row for asked in batch if not len(asked.rest)] == list(range(len(begun.last_hidden))):
        return begun
    return Prefix.joined(
        [
            _extended(model, begun, list(alike))
            for _, alike in groupby(batch, key=lambda each: len(each.rest))
        ]
    )


def _extended(model: VisionLanguageModel, begun: Prefix, alike: Sequence[_Asked]) -> Prefix:
    rests = torch.stack([asked.rest for asked in alike]).to(model.device)
    prefix = begun.rows(torch.tensor([asked.row for asked in alike], device=model.device))
    return model.extend(prefix, rests)[1] if rests.shape[1] else prefix
