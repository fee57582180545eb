from __future__ import annotations

import torch

from bas_opd.select import ReplayBuffer


def _add(buffer: ReplayBuffer, *utility: float, step: int) -> int:
    labels = torch.tensor(utility, dtype=torch.float64)
    return buffer.add(labels[:, None].expand(-1, 6).nan_to_num(), labels, step=step)


def test_the_oldest_label_leaves_first() -> None:
    buffer = ReplayBuffer(capacity=4)
    _add(buffer, 1, 2, 3, step=1)
    _add(buffer, 4, 5, step=2)
    assert buffer.labels.utility.tolist() == [2, 3, 4, 5]
    assert buffer.labels.steps.tolist() == [1, 1, 2, 2]
    assert buffer.labels.features[:, 0].tolist() == [2, 3, 4, 5]


def test_a_step_larger_than_the_buffer_keeps_its_last_labels() -> None:
    buffer = ReplayBuffer(capacity=2)
    assert _add(buffer, 1, 2, 3, step=1) == 3
    assert buffer.labels.utility.tolist() == [2, 3]


def test_a_non_finite_label_or_feature_is_dropped_and_counted() -> None:
    buffer = ReplayBuffer()
    assert _add(buffer, torch.nan, 1, torch.inf, step=1) == 1
    assert buffer.add(torch.full((1, 6), torch.nan), torch.ones(1), step=1) == 0
    assert buffer.labels.utility.tolist() == [1]
    assert buffer.dropped == 3


def test_a_minibatch_holds_no_label_twice_and_is_capped_by_the_buffer() -> None:
    buffer = ReplayBuffer()
    _add(buffer, *range(20), step=1)
    generator = torch.Generator().manual_seed(0)
    assert len(set(buffer.sample(8, generator).utility.tolist())) == 8
    assert sorted(buffer.sample(256, generator).utility.tolist()) == list(range(20))


def test_a_minibatch_is_uniform_over_the_buffer() -> None:
    buffer = ReplayBuffer()
    _add(buffer, *range(10), step=1)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.cat([buffer.sample(3, generator).utility for _ in range(2000)]).long()
    # 600 expected of each, with a standard deviation of about 20.
    assert (drawn.bincount(minlength=10) - 600).abs().max() < 100


def test_a_label_keeps_no_graph() -> None:
    buffer = ReplayBuffer()
    buffer.add(torch.ones(1, 6, requires_grad=True), torch.ones(1, requires_grad=True), step=1)
    assert not buffer.labels.features.requires_grad
    assert not buffer.labels.utility.requires_grad


def test_a_reloaded_buffer_holds_the_same_labels() -> None:
    buffer, other = ReplayBuffer(capacity=3), ReplayBuffer(capacity=3)
    _add(buffer, torch.nan, 1, 2, step=5)
    other.load_state_dict(buffer.state_dict())
    assert other.dropped == 1
    for each in (buffer, other):
        _add(each, 3, 4, step=6)
    for key, value in buffer.state_dict().items():
        assert torch.equal(value, other.state_dict()[key])
