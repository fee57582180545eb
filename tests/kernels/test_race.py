"""The fused race, in Triton's interpreter, against the same race in plain PyTorch."""

from __future__ import annotations

import importlib
from typing import Any

import numpy
import pytest
import torch

from bas_opd.rollout.draws import row_keys
from bas_opd.rollout.race import WIDTH, Race

ROWS, LIMIT = 5, 7


def compared_one_by_one(values: Any, **_: Any) -> Any:
    """Return where the largest value is as a GPU finds it; numpy would look for NaN first."""
    at = 0
    for other in range(1, len(values)):
        if not values[at] >= values[other]:
            at = other
    return numpy.int64(at)


def race(vocab: int, temperature: float = 1.0) -> Race:
    """Return a race with five rows, in which three ids are never drawn."""
    made = Race(
        limit=LIMIT,
        temperature=temperature,
        top_p=1.0,
        suppressed=torch.tensor([0, 3, vocab - 1]),
    )
    made.make_room(ROWS)
    made.keys[:ROWS] = row_keys(1, 2, torch.arange(ROWS), torch.arange(ROWS))
    return made


@pytest.mark.parametrize("vocab", [50, WIDTH, WIDTH + 1, 3 * WIDTH - 100])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("spread", [0.1, 3.0, 60.0])
def test_the_fused_race_draws_and_measures_the_same(
    vocab: int, temperature: float, spread: float
) -> None:
    generator = torch.Generator().manual_seed(vocab)
    plain, fused = race(vocab, temperature), race(vocab, temperature)
    alive = torch.tensor([0, 3, 4])
    for position in (torch.tensor([0]), torch.tensor([2]), torch.tensor([1, 6, 3])):
        logits = spread * torch.randn(3, vocab, generator=generator)
        expected = plain(logits, alive, position)
        assert torch.equal(fused.fused(logits, alive, position), expected)
    assert torch.allclose(fused.logprobs, plain.logprobs, rtol=1e-5, atol=1e-5)
    assert torch.allclose(fused.entropies, plain.entropies, rtol=1e-5, atol=1e-5)


def test_it_draws_from_the_distribution() -> None:
    vocab, rows = 6, 1000
    plain = race(vocab)
    plain.make_room(rows)
    plain.keys[:rows] = row_keys(5, 0, torch.arange(rows), torch.zeros(rows, dtype=torch.long))
    logits = torch.tensor([9.0, 1.0, 0.0, 9.0, 2.0, 9.0])
    drawn = plain.fused(logits.expand(rows, -1), torch.arange(rows), torch.tensor([0]))
    shares = torch.bincount(drawn, minlength=vocab) / rows
    allowed = torch.tensor([-torch.inf, 1.0, 0.0, -torch.inf, 2.0, -torch.inf])
    assert torch.allclose(shares, allowed.softmax(0), atol=0.05)
    assert not shares[[0, 3, 5]].any()


@pytest.mark.parametrize("place", [7, slice(None)])
@pytest.mark.parametrize("vocab", [50, WIDTH + 1, 2 * WIDTH + 1])
def test_logits_that_are_not_numbers_show_in_the_log_probs_and_draw_some_token(
    vocab: int, place: int | slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token beyond the vocabulary would end the process before anything is said."""
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    monkeypatch.setattr(interpreter.np, "argmax", compared_one_by_one)
    made = race(vocab)
    logits = torch.zeros(3, vocab)
    logits[1, place] = torch.nan
    token = made.fused(logits, torch.tensor([0, 1, 2]), torch.tensor([0]))
    assert made.logprobs[:3, 0].isfinite().tolist() == [True, False, True]
    assert token.ge(0).all()
    assert token.lt(vocab).all()
