"""Group rows by prompt and split them into micro-batches by token count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapreplace
from itertools import accumulate, chain

from torch import Tensor

from bas_opd.types import DistantPrompt, Prompt, Rollouts


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptGroup:
    """A prompt with those of its rollouts that are computed."""

    number: int
    prompt: Prompt | DistantPrompt
    rows: tuple[int, ...]
    lengths: tuple[int, ...]
    """Tokens of the response of each row."""
    longest: int
    """The most of them; of a part of a group, that of the entire group."""

    @property
    def tokens_of_a_row(self) -> int:
        """The token limit at which every row of the group is a batch of its own."""
        return self.prompt.length + self.longest

    @property
    def tokens_of_all_rows(self) -> int:
        """The token limit at which the group is a batch of its own."""
        return self.prompt.length + len(self.rows) * self.longest

    def seen_as(self, prompt: Prompt | DistantPrompt) -> PromptGroup:
        """Return the group with another view of the same question."""
        return replace(self, prompt=prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Groups that are computed in one forward pass."""

    groups: tuple[PromptGroup, ...]

    @property
    def prompts(self) -> list[Prompt | DistantPrompt]:
        return [group.prompt for group in self.groups]

    @property
    def rows(self) -> list[int]:
        return [row for group in self.groups for row in group.rows]

    @property
    def prompt_of(self) -> list[int]:
        """Return, for each row, the index of its prompt in `prompts`."""
        return [i for i, group in enumerate(self.groups) for _ in group.rows]

    def responses(self, rollouts: Rollouts) -> list[Tensor]:
        return [rollouts.tokens[row, : int(rollouts.lengths[row])] for row in self.rows]

    def shared_tokens(self, rollouts: Rollouts) -> int:
        """Return the tokens processed if each prompt is computed once."""
        return sum(g.prompt.length for g in self.groups) + self._response_tokens(rollouts)

    def unshared_tokens(self, rollouts: Rollouts) -> int:
        """Return the tokens processed if every row computes its own prompt."""
        prompts = sum(g.prompt.length * len(g.rows) for g in self.groups)
        return prompts + self._response_tokens(rollouts)

    def _response_tokens(self, rollouts: Rollouts) -> int:
        """Return the response tokens fed to the network; the last one is predicted, never fed."""
        return sum(int(rollouts.lengths[row]) - 1 for row in self.rows)


def group_by_prompt(rows: Sequence[int], rollouts: Rollouts) -> list[PromptGroup]:
    """Return the prompts of the given rows, each with its rows."""
    by_prompt: dict[int, list[int]] = {}
    for row in rows:
        by_prompt.setdefault(rollouts.prompt_of(row), []).append(row)
    groups = list[PromptGroup]()
    for number, members in by_prompt.items():
        lengths = tuple(int(rollouts.lengths[row]) for row in members)
        groups.append(
            PromptGroup(
                number=number,
                prompt=rollouts.prompts[number],
                rows=tuple(members),
                lengths=lengths,
                longest=max(lengths),
            )
        )
    return groups


def micro_batches(
    groups: Sequence[PromptGroup],
    tokens: int,
    *,
    share_prompts: bool = True,
    split_prompts: bool = True,
    part_tokens: int | None = None,
) -> Iterator[MicroBatch]:
    """Split groups, sorted by length, into batches of at most `tokens` padded tokens.

    Only a group that exceeds the limit by itself is split, and its prompt computed again; a row
    that exceeds it by itself is a batch of its own. Without `split_prompts`, so is such a group.
    With `part_tokens` the rows of a batch are padded as parts that `of_like_length` returns, if
    they share prompts.
    """
    part_tokens = part_tokens if share_prompts else None
    pieces = list(groups)
    if split_prompts and part_tokens is None:
        pieces = [p for g in groups for p in _pieces(g, tokens, share_prompts=share_prompts)]
    elif split_prompts:
        pieces = [p for g in groups for p in _full_pieces(g, tokens, part_tokens)]
    batch: list[PromptGroup] = []
    for piece in sorted(pieces, key=lambda p: (p.prompt.length, p.longest)):
        # Another piece of a prompt that is in the batch would bring the prompt again.
        is_there = share_prompts and any(piece.number == other.number for other in batch)
        if batch and (is_there or _padded_tokens([*batch, piece], part_tokens) > tokens):
            yield MicroBatch(groups=tuple(batch))
            batch = []
        batch.append(piece)
    if batch:
        yield MicroBatch(groups=tuple(batch))


def of_like_length(lengths: Sequence[int], worth: int) -> list[list[int]]:
    """Split rows by length into parts, so that padding and `worth` tokens a part are fewest."""
    of_length: dict[int, list[int]] = {}
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
        of_length.setdefault(lengths[row], []).append(row)
    rows = [0, *accumulate(len(some) for some in of_length.values())]
    # The fewest tokens of the rows up to a length, and where the last part of these begins.
    fewest, begins = [0], [0]
    for end, longest in enumerate(of_length, 1):
        costs = [fewest[begin] + (rows[end] - rows[begin]) * longest for begin in range(end)]
        begin = min(range(end), key=costs.__getitem__)
        fewest.append(costs[begin] + worth)
        begins.append(begin)
    same = list(of_length.values())
    parts, end = list[list[int]](), len(same)
    while end:
        parts.append(sorted(chain.from_iterable(same[begins[end] : end])))
        end = begins[end]
    return parts[::-1]


def shares(groups: Sequence[PromptGroup], count: int) -> list[list[PromptGroup]]:
    """Deal groups to ranks by their cost in tokens: the largest first, to who has least.

    It depends on lengths alone, so that every rank deals alike, and teacher and student too.
    """
    dealt: list[list[PromptGroup]] = [[] for _ in range(count)]
    loads = [(0, rank) for rank in range(count)]  # a heap
    for group in sorted(groups, key=lambda g: (-g.tokens_of_all_rows, g.number)):
        load, least = loads[0]
        dealt[least].append(group)
        heapreplace(loads, (load + group.tokens_of_all_rows, least))
    place = {group.number: place for place, group in enumerate(groups)}
    return [sorted(share, key=lambda group: place[group.number]) for share in dealt]


def _pieces(group: PromptGroup, tokens: int, *, share_prompts: bool) -> Iterator[PromptGroup]:
    room = (tokens - group.prompt.length) // group.longest if share_prompts else 1
    size = max(1, room)
    for start in range(0, len(group.rows), size):
        yield _part(group, range(start, min(start + size, len(group.rows))))


def _full_pieces(group: PromptGroup, tokens: int, part_tokens: int | None) -> Iterator[PromptGroup]:
    """Yield pieces of a group, of rows by length, each with as many as there is room for."""
    if _padded_tokens([group], part_tokens) <= tokens:
        yield group
        return
    places: list[int] = []
    for place in sorted(range(len(group.rows)), key=group.lengths.__getitem__):
        if places and _padded_tokens([_part(group, [*places, place])], part_tokens) > tokens:
            yield _part(group, places)
            places = []
        places.append(place)
    yield _part(group, places)


def _part(group: PromptGroup, places: Sequence[int]) -> PromptGroup:
    rows, lengths = (tuple(x[i] for i in places) for x in (group.rows, group.lengths))
    return replace(group, rows=rows, lengths=lengths)


def _padded_tokens(groups: Sequence[PromptGroup], part_tokens: int | None) -> int:
    of_prompts = len(groups) * max(g.prompt.length for g in groups)
    if part_tokens is None:
        return of_prompts + sum(len(g.rows) for g in groups) * max(g.longest for g in groups)
    lengths = [length for group in groups for length in group.lengths]
    parts = of_like_length(lengths, part_tokens)
    return of_prompts + sum(len(part) * max(lengths[row] for row in part) for part in parts)
