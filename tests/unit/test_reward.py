"""The reward by rule: what was cut at the limit is no answer, what ended below it is one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from bas_opd.methods.reward import RuleReward

END = 9


def graded(texts: list[str], tokens: list[list[int]], *, limit: int, last_word: bool) -> list[str]:
    """Grade one response to each of some examples whose answer is 3."""
    width = max(map(len, tokens))
    rows = torch.tensor([each + [0] * (width - len(each)) for each in tokens])
    example = SimpleNamespace(id="a", question="How many cups are there?", answer="3")
    rollouts: Any = SimpleNamespace(
        lengths=torch.tensor([len(each) for each in tokens]),
        tokens=rows,
        example_of=lambda row: example,
    )
    left = iter(texts)
    processor = SimpleNamespace(eos_ids=(END,), decode=lambda tokens: next(left))
    model: Any = SimpleNamespace(processor=processor)
    return list(RuleReward(model=model, by_last_word=last_word)(rollouts, limit).grades)


def test_only_a_response_without_its_end_at_the_limit_was_cut() -> None:
    texts = ["The answer is 3,"] * 3
    tokens = [[1, 2, 3], [1, 2, END, 4], [1, 2, 3, END]]
    assert graded(texts, tokens, limit=4, last_word=False) == ["right", "wrong", "right"]


def test_finesearch_is_read_by_its_last_word() -> None:
    texts = ["I see 3 cups. The answer is 3.", "The answer is 3, or 4."]
    tokens = [[1, END], [1, END]]
    assert graded(texts, tokens, limit=4, last_word=True) == ["right", "wrong"]
