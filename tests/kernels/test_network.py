"""A network with the filters and the race as Triton kernels, in Triton's interpreter."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import build_small_model
from stage_fixtures import make_examples, make_model

from bas_opd.data.views import full_view
from bas_opd.model import delta_step, fused
from bas_opd.model.loading import LoraSettings
from bas_opd.rollout import Sampler, SamplingSettings, race
from bas_opd.types import PromptBatch, Rollouts


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Let a CPU compute as a GPU with Triton does; counts what is computed by kernels."""
    found: Counter[str] = Counter()
    for owner, name in (
        (fused.CausalFilter, "apply"),
        (delta_step, "take_step"),
        (fused, "_norm"),
        (fused, "_gated"),
        (fused, "_rotation"),
        (race.Race, "fused"),
    ):
        run = getattr(owner, name)

        def counted(*given: Any, run: Any = run, name: str = name) -> Any:
            found[name] += 1
            return run(*given)

        monkeypatch.setattr(owner, name, counted)
    return found


def choose(monkeypatch: pytest.MonkeyPatch, *, kernels: bool) -> None:
    for module in (delta_step, fused, race):
        monkeypatch.setattr(module, "has_kernels", lambda _: kernels)


@pytest.mark.parametrize("has_fixed_caches", [True, False])
def test_a_sampler_draws_the_same_with_the_kernels(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    calls: Counter[str],
    has_fixed_caches: bool,
) -> None:
    model = make_model(build_small_model(tmp_path / "model", linear_width=32))
    batch = PromptBatch(step=1, examples=make_examples(tmp_path, 2))
    settings = SamplingSettings(max_response_tokens=8, per_prompt=3)

    def drawn(*, kernels: bool) -> Rollouts:
        choose(monkeypatch, kernels=kernels)
        sampler = Sampler(model, full_view, settings)
        sampler.use_graphs = has_fixed_caches
        return sampler.generate(batch)

    plain = drawn(kernels=False)
    assert not calls
    found = drawn(kernels=True)
    assert set(calls) == {"apply", "take_step", "fused", "_norm", "_gated", "_rotation"}
    assert torch.equal(found.tokens, plain.tokens)
    assert torch.allclose(found.logprobs, plain.logprobs, atol=1e-5)
    assert found.entropies is not None
    assert plain.entropies is not None
    assert torch.allclose(found.entropies, plain.entropies, atol=1e-5)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_network_learns_the_same_with_the_filters(
    small_qwen35: Path, monkeypatch: pytest.MonkeyPatch, calls: Counter[str], rank: int
) -> None:
    """With activations recomputed; with adapters, nothing of a filter is trained."""
    lora = LoraSettings(rank=rank) if rank else None
    network: Any = make_model(small_qwen35, lora=lora, gradient_checkpointing=True).network
    network.train()
    ids = torch.randint(5, 60, (2, 40), generator=torch.Generator().manual_seed(0))
    found = []
    for kernels in (False, True):
        choose(monkeypatch, kernels=kernels)
        network.zero_grad()
        network(input_ids=ids, use_cache=False).logits.float().square().mean().backward()
        found.append(
            {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}
        )
        assert bool(calls["apply"]) == kernels
    assert found[0].keys() == found[1].keys()
    assert any("conv1d" in name for name in found[0]) == (rank == 0)
    for name, gradient in found[0].items():
        assert torch.allclose(found[1][name], gradient, rtol=1e-3, atol=1e-6), name
