"""Linear attention in chunks, against the recurrence it stands for and transformers' reference."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from delta_fixtures import Inputs, delta_inputs, recurrence
from stage_fixtures import make_model
from torch import Tensor
from transformers.models.qwen3_5 import modeling_qwen3_5

from bas_opd.compute import compiling
from bas_opd.model import delta, fused_delta
from bas_opd.model.delta import chunked_delta_rule, implementation, register_delta_rule


def inputs(length: int, dtype: torch.dtype = torch.float64) -> Inputs:
    return delta_inputs(2, length, 3, 4, 5, dtype=dtype)


def gradients(run: Callable[..., Any], given: Inputs) -> list[Tensor]:
    """Return the two outputs of a function and the gradients at its inputs."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in given.items()}
    out, state = run(**leaves)
    (out.sin().sum() + state.sin().sum()).backward()
    return [out, state, *(leaf.grad for leaf in leaves.values() if leaf.grad is not None)]


def in_chunks(**given: Any) -> tuple[Tensor, Tensor | None]:
    return chunked_delta_rule(
        **given, chunk_size=4, output_final_state=True, use_qk_l2norm_in_kernel=True
    )


@pytest.mark.parametrize("length", [1, 3, 4, 5, 12, 23])
def test_chunks_give_what_the_recurrence_gives(length: int) -> None:
    given = inputs(length)
    expected, found = gradients(recurrence, given), gradients(in_chunks, given)
    assert len(found) == 8
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("starts", [True, False])
def test_it_is_the_function_of_transformers(dtype: torch.dtype, starts: bool) -> None:
    given = inputs(150, torch.float32)
    first = given.pop("initial_state").detach()
    given |= {name: given[name].detach().to(dtype) for name in ("query", "key", "value")}
    options = {
        "initial_state": first if starts else None,
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": True,
    }
    found = gradients(lambda **each: chunked_delta_rule(**each, **options), given)
    reference = getattr(modeling_qwen3_5.torch_chunk_gated_delta_rule, "reference", None)
    reference = reference or modeling_qwen3_5.torch_chunk_gated_delta_rule
    expected = gradients(lambda **each: reference(**each, **options), given)
    assert [each.dtype for each in found[:2]] == [dtype, torch.float32]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype is theirs.dtype
        assert torch.allclose(ours.float(), theirs.float(), rtol=1e-4, atol=1e-5)


def test_the_last_state_is_returned_only_if_asked_for() -> None:
    given = inputs(5)
    assert chunked_delta_rule(**given)[1] is None


def test_a_cpu_has_the_reference_and_a_gpu_what_is_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    def machine(*, fla: bool, capability: int, triton: tuple[int, ...]) -> tuple[str, str]:
        monkeypatch.setattr(delta, "_has_fla", lambda: fla)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (capability, 0))
        monkeypatch.setattr(delta, "_triton", lambda: triton)
        monkeypatch.setattr(compiling, "has_triton", lambda: bool(triton))
        gpu = torch.device("cuda")
        return implementation(gpu, learns=True), implementation(gpu, learns=False)

    assert implementation(torch.device("cpu"), learns=True) == "reference"
    assert machine(fla=False, capability=9, triton=()) == ("chunked", "chunked")
    assert machine(fla=False, capability=9, triton=(3, 6, 0)) == ("triton", "triton")
    assert machine(fla=True, capability=9, triton=(3, 6, 0)) == ("triton", "fla")
    assert machine(fla=True, capability=9, triton=(3, 7, 1)) == ("fla", "fla")
    assert machine(fla=True, capability=8, triton=(3, 6, 0)) == ("fla", "fla")
    assert machine(fla=False, capability=8, triton=(3, 6, 0)) == ("triton", "triton")
    # Its shared memory is too small for our kernels.
    assert machine(fla=False, capability=7, triton=(3, 6, 0)) == ("chunked", "chunked")
    with pytest.MonkeyPatch.context() as on_amd:
        on_amd.setattr(torch.version, "hip", "6.4")
        assert machine(fla=False, capability=9, triton=(3, 6, 0)) == ("chunked", "chunked")
    monkeypatch.setattr(compiling, "_chosen", "reference")
    assert machine(fla=False, capability=9, triton=(3, 6, 0)) == ("reference", "reference")


@pytest.mark.parametrize(
    ("text", "usable", "said"),
    [
        (None, False, 0),
        ("chunk_gated_delta_rule = print", True, 0),
        ("", False, 0),
        ("raise RuntimeError('no such symbol')", False, 1),
    ],
)
def test_flash_linear_attention_counts_only_if_it_can_be_imported(
    text: str | None,
    usable: bool,
    said: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if text is not None:
        (tmp_path / "fla/ops").mkdir(parents=True)
        (tmp_path / "fla/ops/gated_delta_rule.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
    for name in ("fla", "fla.ops", "fla.ops.gated_delta_rule"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    delta._has_fla.cache_clear()
    assert [delta._has_fla() for _ in range(2)] == [usable] * 2
    assert sum("no such symbol" in each.getMessage() for each in caplog.records) == said
    delta._has_fla.cache_clear()


@pytest.mark.parametrize("fits", [True, False])
def test_what_the_kernels_cannot_compute_stays_in_chunks(
    monkeypatch: pytest.MonkeyPatch, fits: bool
) -> None:
    monkeypatch.setattr(delta, "implementation", lambda *_, **__: "triton")
    monkeypatch.setattr(delta, "can_fuse", lambda *_: fits)
    monkeypatch.setattr(delta, "fused_delta_rule", lambda *_, **__: "fused")
    monkeypatch.setattr(delta, "chunked_delta_rule", lambda *_, **__: "chunked")
    found = delta._choosing(chunked_delta_rule)(**inputs(5))
    assert found == ("fused" if fits else "chunked")


def test_the_kernels_fit_widths_that_are_powers_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_delta, "has_triton", lambda: True)

    class OnGpu(torch.Tensor):
        is_cuda = True  # type: ignore[assignment]

    def fits(width: int, wide: int, dtype: torch.dtype = torch.bfloat16) -> bool:
        query, value = (torch.empty(1, 3, 2, each, dtype=dtype) for each in (width, wide))
        return fused_delta.can_fuse(query.as_subclass(OnGpu), value)

    assert fits(128, 128)
    assert fits(16, 64, torch.float32)
    assert not fits(128, 96)
    assert not fits(8, 128)
    assert not fits(128, 128, torch.float64)
    assert not fused_delta.can_fuse(torch.empty(1, 3, 2, 16), torch.empty(1, 3, 2, 16))


def test_a_network_learns_the_same_with_either(
    small_qwen35: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(small_qwen35)
    register_delta_rule()  # a second time changes nothing
    network = model.network
    ids = torch.randint(5, 60, (2, 70), generator=torch.Generator().manual_seed(0))
    calls, found = [], []
    real = delta.chunked_delta_rule

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return real(*args, **kwargs)

    monkeypatch.setattr(delta, "chunked_delta_rule", counted)
    for name in ("reference", "chunked"):
        monkeypatch.setattr(delta, "implementation", lambda *_, name=name, **__: name)
        network.zero_grad()
        network(input_ids=ids).logits.float().square().mean().backward()
        found.append(
            {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}
        )
        assert bool(calls) == (name == "chunked")
    assert any("linear_attn" in name for name in found[0])
    for name, gradient in found[0].items():
        assert torch.allclose(found[1][name], gradient, rtol=1e-3, atol=1e-6), name


def test_packed_rows_are_left_to_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "implementation", lambda *_, **__: "chunked")
    chosen = delta._choosing(lambda *_, **__: "reference")
    given = inputs(5)
    assert chosen(**given, cu_seqlens=torch.tensor([0, 5])) == "reference"
    assert chosen(**given, cu_seqlens=None, use_cache=True)[0].shape == given["value"].shape


def test_the_reference_is_what_transformers_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its wrapper would take flash-linear-attention, whose backward pass may be unsound."""

    @functools.wraps(chunked_delta_rule)
    def taking_fla(*_: Any, **__: Any) -> Any:
        raise AssertionError

    given = inputs(5)
    assert delta._choosing(taking_fla)(**given)[0].shape == given["value"].shape

    def step(*_: Any, **options: Any) -> str:
        return "plain " + ", ".join(options)

    wrapped = functools.wraps(step)(taking_fla)
    wrapped.__wrapped__ = step  # type: ignore[attr-defined]
    found = delta._choosing_step(wrapped)(**given, use_cache=True)
    assert found.startswith("plain")
    assert "use_cache" not in found
    packed = delta._choosing_step(lambda *_, **__: "fla")
    assert packed(given["query"], cu_seqlens=torch.tensor([0, 5])) == "fla"
    monkeypatch.setattr(delta, "is_fast", lambda _: True)
    assert packed(**given) == "fla"


def test_autocast_does_not_round_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "implementation", lambda *_, **__: "chunked")
    chosen, given = delta._choosing(chunked_delta_rule), inputs(9, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = chosen(**given)
    assert torch.equal(found, chunked_delta_rule(**given)[0])
