"""The fused race at the vocabulary of Qwen3.5-4B, against the same race in plain PyTorch."""

from __future__ import annotations

import pytest
import torch

from bas_opd.compute import compiling
from bas_opd.rollout.draws import row_keys
from bas_opd.rollout.race import Race

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROWS, VOCAB = 224, 248_320


@pytest.mark.parametrize("spread", [0.5, 4.0])
def test_the_fused_race_draws_and_measures_the_same(
    spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "has_triton", lambda: False)
    races = []
    for _ in range(2):
        race = Race(
            limit=4,
            temperature=1.0,
            top_p=1.0,
            suppressed=torch.tensor([0, 17, VOCAB - 1], device="cuda"),
        )
        race.make_room(ROWS)
        numbers = torch.arange(ROWS)
        race.keys[:ROWS] = row_keys(1, 2, numbers, numbers).cuda()
        races.append(race)
    plain, fused = races
    alive = torch.arange(ROWS, device="cuda")
    for place in range(4):
        torch.manual_seed(place)
        logits = spread * torch.randn(ROWS, VOCAB, device="cuda")
        position = torch.tensor([place], device="cuda")
        logprobs = plain.log_distribution(logits)
        expected, found = plain(logits, alive, position), fused.fused(logits, alive, position)
        # A draw differs only where two tokens all but tie.
        assert int((expected != found).sum()) <= 1
        own = logprobs.gather(-1, found[:, None])[:, 0]
        assert torch.allclose(fused.logprobs[:ROWS, place], own, rtol=0, atol=1e-4)
    assert torch.allclose(fused.entropies, plain.entropies, rtol=1e-5, atol=1e-4)


def test_logits_that_are_not_numbers_draw_some_token_and_show() -> None:
    race = Race(
        limit=1, temperature=1.0, top_p=1.0, suppressed=torch.tensor([0, 17], device="cuda")
    )
    race.make_room(3)
    logits = torch.zeros(3, VOCAB, device="cuda")
    logits[1, 7] = torch.nan
    alive = torch.arange(3, device="cuda")
    token = race.fused(logits, alive, torch.zeros(1, dtype=torch.long, device="cuda"))
    assert token.ge(0).all()
    assert token.lt(VOCAB).all()
    assert race.logprobs[:3, 0].isfinite().tolist() == [True, False, True]
