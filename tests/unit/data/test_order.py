from __future__ import annotations

import pytest

from bas_opd.data.order import epoch_order, step_indices, steps_per_epoch
from bas_opd.errors import DataError


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
