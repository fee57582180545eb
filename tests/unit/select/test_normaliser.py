from __future__ import annotations

import torch

from bas_opd.select import RunningNormaliser


def _batch(*column: float) -> torch.Tensor:
    return torch.tensor(column, dtype=torch.float64)[:, None].expand(-1, 6).clone()


def test_the_statistics_follow_a_hand_computed_sequence() -> None:
    normaliser = RunningNormaliser()
    seen = []
    for batch in (_batch(1, 3), _batch(10, 10), _batch(0, 4)):
        normaliser.update(batch)
        seen.append((normaliser.mean[0].item(), normaliser.variance[0].item()))
    # First: mean 2, population variance 1. Then 0.99 of the old and 0.01 of (10, 0), of (2, 4).
    expected = [(2.0, 1.0), (2.08, 0.99), (2.0792, 1.0201)]
    torch.testing.assert_close(torch.tensor(seen), torch.tensor(expected))
    normalised = normaliser.normalise(_batch(5))
    expected = torch.full((1, 6), (5 - 2.0792) / (1.0201 + 1e-6) ** 0.5, dtype=torch.float64)
    torch.testing.assert_close(normalised, expected, rtol=1e-14, atol=0)


def test_an_empty_batch_changes_nothing() -> None:
    normaliser = RunningNormaliser()
    normaliser.update(torch.empty(0, 6, dtype=torch.float64))
    normaliser.update(_batch(1, 3))
    normaliser.update(torch.empty(0, 6, dtype=torch.float64))
    assert normaliser.mean.eq(2).all()
    assert normaliser.variance.eq(1).all()


def test_a_non_finite_row_is_left_out() -> None:
    normaliser = RunningNormaliser()
    batch = _batch(1, 3, 5, 7)
    batch[2, 4], batch[3, 0] = torch.nan, torch.inf
    normaliser.update(batch)
    assert normaliser.mean.eq(2).all()
    assert normaliser.variance.eq(1).all()


def test_normalising_leaves_the_statistics_as_they_are() -> None:
    normaliser = RunningNormaliser()
    normaliser.update(_batch(1, 3))
    before = normaliser.state_dict()
    normaliser.normalise(_batch(100, 200))
    assert all(torch.equal(before[key], value) for key, value in normaliser.state_dict().items())


def test_a_constant_feature_stays_finite() -> None:
    normaliser = RunningNormaliser()
    normaliser.update(_batch(7, 7, 7))
    assert normaliser.normalise(_batch(7, 8)).isfinite().all()


def test_a_reloaded_normaliser_continues_alike_and_apart() -> None:
    first, second = RunningNormaliser(), RunningNormaliser()
    first.update(_batch(1, 3))
    second.load_state_dict(first.state_dict())
    first.update(_batch(4, 9))
    assert second.mean.eq(2).all()
    second.update(_batch(4, 9))
    assert torch.equal(first.mean, second.mean)
    assert torch.equal(first.variance, second.variance)
