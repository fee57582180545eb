from __future__ import annotations

from pathlib import Path

import pytest

from bas_opd.data.order import PromptStream, epoch_order, step_indices, steps_per_epoch
from bas_opd.errors import DataError
from bas_opd.types import Example


def test_the_papers_epoch_has_111_steps_and_leaves_12_pairs_over() -> None:
    assert steps_per_epoch(3120, 28) == 111
    seen = [row for step in range(111) for row in step_indices(3120, 28, 42, step)]
    assert len(seen) == len(set(seen)) == 3108


def test_the_order_is_the_same_on_every_machine() -> None:
    assert epoch_order(8, 42, 0) == (6, 7, 2, 3, 0, 5, 4, 1)


def test_fewer_rows_than_one_step_is_refused() -> None:
    with pytest.raises(DataError, match="27 rows, fewer than the 28 prompts"):
        step_indices(27, 28, 42, 0)
    with pytest.raises(DataError, match="at least one prompt"):
        steps_per_epoch(27, 0)


def test_a_step_may_take_several_batches_each_its_own_round() -> None:
    examples = [Example(id=str(i), image=Path("x"), question="?") for i in range(6)]
    prompts = PromptStream(examples, per_step=2, seed=1)
    prompts.begin(4)
    first, second = prompts.take(), prompts.take()
    prompts.begin(5)
    third = prompts.take()
    assert [(b.step, b.round) for b in (first, second, third)] == [(4, 0), (4, 1), (5, 0)]
    taken = [e.id for b in (first, second, third) for e in b.examples]
    assert sorted(taken) == list("012345")
    assert prompts.cursor == 3
