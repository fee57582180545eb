"""How the prompts of a step are dealt to processes, and rows split by length."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bas_opd.model.batches import PromptGroup, of_like_length, shares
from bas_opd.types import DistantPrompt

Size = tuple[int, int, int]
"""Tokens of a prompt, its rows, and tokens of the longest."""
SIZES = st.lists(st.tuples(st.integers(1, 8192), st.integers(1, 8), st.integers(1, 1024)))


def never() -> Any:
    raise AssertionError("Only lengths count.")


def groups_of(sizes: Sequence[Size]) -> list[PromptGroup]:
    return [
        PromptGroup(
            number=number,
            prompt=DistantPrompt(length, never),
            rows=tuple(range(8 * number, 8 * number + rows)),
            lengths=(longest,) * rows,
            longest=longest,
        )
        for number, (length, rows, longest) in enumerate(sizes)
    ]


def assert_balanced(dealt: Sequence[Sequence[PromptGroup]]) -> None:
    """No process has more than the mean and the largest group."""
    costs = [[group.tokens_of_all_rows for group in share] for share in dealt]
    largest = max((cost for share in costs for cost in share), default=0)
    assert max(map(sum, costs)) <= sum(map(sum, costs)) / len(dealt) + largest


@given(SIZES, st.integers(1, 9))
def test_every_group_is_dealt_once_and_no_process_has_much_more(
    sizes: list[Size], count: int
) -> None:
    groups = groups_of(sizes)
    dealt = shares(groups, count)
    assert len(dealt) == count
    assert sorted(group.number for share in dealt for group in share) == list(range(len(groups)))
    assert_balanced(dealt)


@given(SIZES, st.integers(1, 9))
def test_the_deal_depends_on_nothing_but_the_groups(sizes: list[Size], count: int) -> None:
    groups = groups_of(sizes)
    shuffled = random.Random(count).sample(groups, len(groups))
    dealt = [{group.number for group in share} for share in shares(groups, count)]
    again = [{group.number for group in share} for share in shares(shuffled, count)]
    assert dealt == again


def test_dealt_in_turn_they_would_not_be_balanced() -> None:
    groups = groups_of([(8000, 8, 100), (100, 1, 10)] * 8)
    assert_balanced(shares(groups, 2))
    with pytest.raises(AssertionError):
        assert_balanced([groups[rank::2] for rank in range(2)])


def tokens_of(parts: Sequence[Sequence[int]], lengths: Sequence[int], worth: int) -> int:
    """Return what parts cost, padding and `worth` tokens each included."""
    return sum(worth + len(part) * max(lengths[row] for row in part) for part in parts)


@given(st.lists(st.integers(1, 1024), min_size=1, max_size=40), st.integers(0, 5000))
def test_rows_are_in_parts_once_and_longer_ones_later(lengths: list[int], worth: int) -> None:
    parts = of_like_length(lengths, worth)
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    assert all(part == sorted(part) for part in parts)
    for shorter, longer in pairwise(parts):
        assert max(lengths[row] for row in shorter) <= min(lengths[row] for row in longer)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=7), st.integers(0, 60))
def test_no_other_split_by_length_has_fewer_tokens(lengths: list[int], worth: int) -> None:
    order = sorted(range(len(lengths)), key=lambda row: lengths[row])
    every = []
    for cuts in range(2 ** (len(order) - 1)):
        parts = [[order[0]]]
        for place, row in enumerate(order[1:]):
            if cuts >> place & 1:
                parts.append([])
            parts[-1].append(row)
        every.append(tokens_of(parts, lengths, worth))
    assert tokens_of(of_like_length(lengths, worth), lengths, worth) == min(every)


def test_rows_stay_together_unless_padding_costs_more() -> None:
    assert of_like_length([70, 80, 60], 2048) == [[0, 1, 2]]
    assert of_like_length([70, 700, 80, 60], 2048) == [[0, 1, 2, 3]]
    assert of_like_length([1024, *[70] * 8], 2048) == [[*range(1, 9)], [0]]
