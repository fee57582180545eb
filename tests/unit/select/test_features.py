from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bas_opd.select import features, features_from, rollout_features
from bas_opd.types import FEATURES, Crop, Example, Prompt, Rollouts


def test_the_six_features_of_a_hand_made_row() -> None:
    values = features_from(
        torch.tensor([[-1.0, -2.0, -4.0, -99.0]]),
        torch.tensor([3]),
        entropies=torch.tensor([[0.5, 1.0, 1.5, 99.0]]),
        prompt_lengths=[17],
        crop_areas=[0.25],
    )
    # 0.9 * (3 - 1) = 1.8: four fifths of the way from 2 to 4.
    expected = torch.tensor([[7 / 3, 3.6, 1.0, 3.0, 17.0, 0.25]], dtype=torch.float64)
    torch.testing.assert_close(values, expected, rtol=1e-15, atol=0)


def test_the_percentile_is_that_of_torch_at_every_length() -> None:
    tokens = 60
    logprobs = -torch.rand(tokens, tokens, generator=torch.Generator().manual_seed(0)).double()
    values = features_from(logprobs, range(1, tokens + 1))
    for row in range(tokens):
        expected = torch.quantile(-logprobs[row, : row + 1], 0.9)
        torch.testing.assert_close(values[row, 1], expected, rtol=1e-14, atol=0)


def test_what_is_not_known_is_zero() -> None:
    values = features_from(torch.full((2, 3), -1.0), [3, 2])
    assert values[:, [2, 4, 5]].eq(0).all()


def test_a_row_without_valid_tokens_has_zeros_and_no_nan() -> None:
    logprobs = torch.full((2, 4), torch.nan)
    logprobs[1, :2] = -1.0
    assert features_from(logprobs, [0, 2])[:, :4].tolist() == [[0, 0, 0, 0], [1, 1, 0, 2]]
    assert features_from(logprobs, [0, 0]).eq(0).all()
    assert features_from(torch.empty(2, 0), [0, 0]).eq(0).all()


def test_no_rows_give_no_features() -> None:
    assert features_from(torch.empty(0, 7), []).shape == (0, 6)


def test_features_are_detached_and_float64() -> None:
    logprobs = torch.full((1, 2), -1.0, requires_grad=True)
    values = features_from(logprobs, [2], entropies=logprobs)
    assert values.dtype == torch.float64
    assert not values.requires_grad


def test_a_shape_that_does_not_fit_is_refused() -> None:
    logprobs = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"they are \[2, 3\] and \[3\]"):
        features_from(logprobs, [1, 1, 1])
    with pytest.raises(ValueError, match="entropies must have the shape of logprobs"):
        features_from(logprobs, [1, 1], entropies=torch.zeros(2, 2))
    with pytest.raises(ValueError, match="Row 1 has a length of 4"):
        features_from(logprobs, [1, 4])
    with pytest.raises(ValueError, match="Row 0 has a length of -1"):
        features_from(logprobs, [-1, 3])
    with pytest.raises(ValueError, match="crop_areas must hold one value for each of 2 rows"):
        features_from(logprobs, [1, 1], crop_areas=[0.5])


def _rollouts(entropies: torch.Tensor | None) -> Rollouts:
    def example(name: str, crop: Crop | None) -> Example:
        return Example(id=name, image=Path(name), question="?", crop=crop)

    def prompt(length: int) -> Prompt:
        ids = torch.zeros(length, dtype=torch.int64)
        return Prompt(
            input_ids=ids, pixel_values=torch.empty(0, 1), grid=torch.empty(0, 3, dtype=torch.int64)
        )

    return Rollouts(
        step=3,
        examples=(example("a", Crop(area=0.1)), example("b", None), example("c", Crop(area=0.0))),
        prompts=(prompt(11), prompt(12), prompt(13)),
        per_prompt=2,
        tokens=torch.zeros(6, 3, dtype=torch.int64),
        lengths=torch.tensor([1, 2, 3, 3, 0, 2]),
        logprobs=-torch.arange(18.0).reshape(6, 3),
        entropies=entropies,
    )


def test_rollout_features_belong_to_their_candidates() -> None:
    rollouts = _rollouts(torch.arange(18.0).reshape(6, 3) / 2)
    features = rollout_features(rollouts, rollouts.candidates())
    assert features.rows == (0, 1, 5)
    assert features.has_entropy
    columns = dict(zip(FEATURES, features.values.T.tolist(), strict=True))
    assert columns["mean_nll"] == [0.0, 3.5, 15.5]
    assert columns["mean_entropy"] == [0.0, 1.75, 7.75]
    assert columns["response_tokens"] == [1, 2, 2]
    assert columns["prompt_tokens"] == [11, 11, 13]
    assert columns["crop_area"] == [0.1, 0.1, 0.0]


def test_an_engine_without_entropy_says_so() -> None:
    rollouts = _rollouts(None)
    features = rollout_features(rollouts, rollouts.candidates())
    assert not features.has_entropy
    assert features.values[:, FEATURES.index("mean_entropy")].eq(0).all()


def test_no_candidates_give_empty_features() -> None:
    features = rollout_features(_rollouts(None), ())
    assert len(features) == 0
    assert features.values.shape == (0, 6)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 200])
def test_rows_have_the_same_bytes_however_many_are_computed_at_once(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(rows)
    # In float64, so that sums are rounded.
    logprobs, entropies = -torch.rand((2, rows, 301), generator=generator, dtype=torch.float64)
    lengths = torch.randint(0, 302, (rows,), generator=generator)
    whole = features_from(logprobs, lengths, entropies=entropies)
    monkeypatch.setattr(features, "ROWS_AT_ONCE", 3)
    assert torch.equal(features_from(logprobs, lengths, entropies=entropies), whole)
