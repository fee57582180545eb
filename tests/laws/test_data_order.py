from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bas_opd.data.order import epoch_order, step_indices, steps_per_epoch

rows = st.integers(1, 200)
seeds = st.integers(0, 2**63)


@settings(deadline=None)
@given(n=rows, seed=seeds, epoch=st.integers(0, 50))
def test_an_epoch_holds_every_row_once(n: int, seed: int, epoch: int) -> None:
    assert sorted(epoch_order(n, seed, epoch)) == list(range(n))
    assert epoch_order(n, seed, epoch) == epoch_order.__wrapped__(n, seed, epoch)


@settings(deadline=None)
@given(seed=seeds, epoch=st.integers(0, 50))
def test_another_seed_or_epoch_is_another_order(seed: int, epoch: int) -> None:
    order = epoch_order(100, seed, epoch)
    assert order != epoch_order(100, seed + 1, epoch)
    assert order != epoch_order(100, seed, epoch + 1)


@settings(deadline=None)
@given(n=rows, data=st.data(), seed=seeds, epoch=st.integers(0, 5))
def test_the_steps_of_an_epoch_are_its_order_cut_in_batches(
    n: int, data: st.DataObject, seed: int, epoch: int
) -> None:
    per_step = data.draw(st.integers(1, n))
    steps = steps_per_epoch(n, per_step)
    seen = [
        row
        for step in range(epoch * steps, (epoch + 1) * steps)
        for row in step_indices(n, per_step, seed, step)
    ]
    assert tuple(seen) == epoch_order(n, seed, epoch)[: steps * per_step]
    assert n - len(seen) < per_step
