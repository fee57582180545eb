"""Linear attention as Triton kernels, in Triton's interpreter.

Products are computed as tensor cores do, with operands rounded to tf32 or bf16, which the
interpreter leaves out.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from delta_fixtures import Inputs, delta_inputs, recurrence
from memory_fixtures import peak_of_an_update
from small_models import build_small_model
from stage_fixtures import make_model
from torch import Tensor
from transformers.models.qwen3_5 import modeling_qwen3_5

from bas_opd.model import delta, fused_delta
from bas_opd.model.activations import activations, text_kept
from bas_opd.model.attention import register_grouped_attention
from bas_opd.model.delta import chunked_delta_rule
from bas_opd.model.fused_delta import fused_delta_rule

OPTIONS: dict[str, Any] = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
BF16 = ("query", "key", "value", "beta")


def as_tensor_cores(_: Any, a: Any, b: Any, total: Any, precision: Any, __: int) -> Any:
    """Multiply two matrices of the interpreter; the rest of the signature is that of its own."""
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")

    def numbers(matrix: Any) -> Tensor:
        found = torch.from_numpy(matrix.data.copy())
        return found.view(torch.bfloat16).float() if found.dtype is torch.uint16 else found

    def rounded(x: Tensor) -> Tensor:
        """Keep the 10 bits of tf32."""
        return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    x, y = numbers(a), numbers(b)
    name = str(precision).lower()
    if a.data.dtype.itemsize == 2 or "ieee" in name:
        found = x @ y
    else:
        high_x, high_y = rounded(x), rounded(y)
        found = high_x @ high_y
        if "tf32x3" in name:
            found += rounded(x - high_x) @ high_y + high_x @ rounded(y - high_y)
    return interpreter.TensorHandle(found.numpy() + total.data, total.dtype.scalar)


@pytest.fixture(autouse=True)
def _tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", as_tensor_cores)


def outcome(rule: Callable[..., Any], given: Inputs, **options: Any) -> dict[str, Tensor]:
    """Return outputs and gradients, where what reaches the outputs is fixed and exact in bf16."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in given.items()}
    out, last = rule(**leaves, **options)
    draws = torch.Generator().manual_seed(1)
    of_out, of_last = (torch.randn(x.shape, generator=draws).bfloat16() for x in (out, last))
    ((out * of_out.to(out)).sum() + (last * of_last.to(last)).sum()).backward()
    found = {"out": out.detach(), "last": last.detach()}
    return found | {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


def check(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """Compare by the norm of the error; bf16 may be rounded down, as the interpreter does."""
    assert found.keys() == expected.keys()
    for name, x in found.items():
        allowed = 2**-7 if x.dtype is torch.bfloat16 else tolerance
        error = (x.double() - expected[name]).norm() / expected[name].norm()
        assert x.shape == expected[name].shape
        assert float(error) < allowed, name


@pytest.mark.parametrize("chunk", [16, 32, 64])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 70])
def test_the_kernels_give_what_the_recurrence_gives(length: int, chunk: int) -> None:
    given = delta_inputs(1, length, 2, 16, 32, dtype=torch.float32)
    found = outcome(fused_delta_rule, given, chunk_size=chunk, **OPTIONS)
    exact = {name: x.double() for name, x in given.items()}
    check(found, outcome(recurrence, exact), 5e-6)


@pytest.mark.parametrize("is_normalised", [True, False])
@pytest.mark.parametrize("starts", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_they_are_the_function_of_transformers(
    dtype: torch.dtype, starts: bool, is_normalised: bool
) -> None:
    given = delta_inputs(2, 130, 2, 32, 16, dtype=torch.float32)
    given["key"] = given["key"] / 6  # about 1 long, which the rule needs to be stable
    given |= {name: given[name].to(dtype) for name in BF16}
    if not starts:
        del given["initial_state"]
    options = {**OPTIONS, "use_qk_l2norm_in_kernel": is_normalised}
    found = outcome(fused_delta_rule, given, **options)
    assert found["out"].dtype is dtype
    exact = {name: x.double() for name, x in given.items()}
    check(found, outcome(chunked_delta_rule, exact, **options), 5e-6)
    reference: Any = modeling_qwen3_5.torch_chunk_gated_delta_rule
    reference = getattr(reference, "reference", reference)
    options.setdefault("initial_state", None)
    options = {name: x for name, x in options.items() if name not in given}
    theirs = outcome(reference, {name: x.float() for name, x in given.items()}, **options)
    check(found, {name: x.double() for name, x in theirs.items()}, 1e-5)


@pytest.mark.parametrize(
    ("alike", "decay", "strength"),
    [(1.0, 0.0, 1.0), (0.999, -1e-3, 0.999), (0.0, -30.0, 0.5), (0.9, -8.0, 1.0)],
)
def test_keys_that_are_alike_and_large_decays_lose_no_precision(
    alike: float, decay: float, strength: float
) -> None:
    """Powers of the system would reach 10^17 in the first case."""
    given = delta_inputs(1, 128, 1, 16, 16, dtype=torch.float32)
    key = given["key"].detach()
    given["key"] = alike * key[:, :1] + (1 - alike) * key
    given["g"] = torch.full_like(given["g"], decay)
    given["beta"] = torch.full_like(given["beta"], strength)
    found = outcome(fused_delta_rule, given, **OPTIONS)
    expected = outcome(recurrence, {name: x.double() for name, x in given.items()})
    plain = outcome(chunked_delta_rule, given, **OPTIONS)
    for name, x in found.items():
        error, other = ((y.double() - expected[name]).norm() for y in (x, plain[name]))
        assert float(error) <= max(4 * float(other), 5e-6 * float(expected[name].norm())), name


def test_one_product_in_tf32_is_less_precise(monkeypatch: pytest.MonkeyPatch) -> None:
    given = delta_inputs(1, 70, 1, 16, 16, dtype=torch.float32)
    exact = outcome(recurrence, {name: x.double() for name, x in given.items()})
    monkeypatch.setattr(fused_delta, "PRECISION", "tf32")
    found = outcome(fused_delta_rule, given, **OPTIONS)
    check(found, exact, 5e-3)
    with pytest.raises(AssertionError):
        check(found, exact, 1e-4)


def test_a_network_learns_the_same_with_the_kernels(
    small_qwen35: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With activations recomputed."""
    network: Any = make_model(small_qwen35).network
    network.gradient_checkpointing_enable()
    network.train()
    ids = torch.randint(5, 60, (2, 40), generator=torch.Generator().manual_seed(0))
    calls, found = [], []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return fused_delta_rule(*args, **kwargs)

    monkeypatch.setattr(delta, "can_fuse", lambda *_: True)
    monkeypatch.setattr(delta, "fused_delta_rule", counted)
    for name in ("reference", "triton"):
        monkeypatch.setattr(delta, "implementation", lambda *_, name=name, **__: name)
        network.zero_grad()
        network(input_ids=ids, use_cache=False).logits.float().square().mean().backward()
        found.append(
            {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}
        )
        assert bool(calls) == (name == "triton")
    assert any("linear_attn" in name for name in found[0])
    for name, gradient in found[0].items():
        assert torch.allclose(found[1][name], gradient, rtol=1e-3, atol=1e-6), name


@pytest.mark.parametrize("uses", ["out", "last"])
def test_an_output_that_nothing_uses_gives_no_gradient(uses: str) -> None:
    given = delta_inputs(1, 20, 1, 16, 16, dtype=torch.float32)

    def gradients(rule: Callable[..., Any]) -> list[Tensor]:
        leaves = {name: x.detach().clone().requires_grad_() for name, x in given.items()}
        out, last = rule(**leaves, **OPTIONS)
        total = (out if uses == "out" else last).sum()
        return list(torch.autograd.grad(total, list(leaves.values()), materialize_grads=True))

    for ours, theirs in zip(
        gradients(fused_delta_rule), gradients(chunked_delta_rule), strict=True
    ):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_views_are_read_where_they_are_and_the_last_state_only_if_asked_for() -> None:
    given = delta_inputs(2, 20, 2, 16, 16, dtype=torch.float32)
    turned = {
        name: x.transpose(1, 2).contiguous().transpose(1, 2) if name != "initial_state" else x
        for name, x in given.items()
    }
    assert torch.equal(fused_delta_rule(**turned)[0], fused_delta_rule(**given)[0])
    assert fused_delta_rule(**given)[1] is None


def test_another_chunk_is_refused() -> None:
    given = delta_inputs(1, 20, 1, 16, 16, dtype=torch.float32)
    with pytest.raises(ValueError, match="chunk_size is 48"):
        fused_delta_rule(**given, chunk_size=48)


@pytest.mark.parametrize("way", ["triton", "chunked"])
def test_what_is_counted_for_a_plan_is_what_is_kept(
    small_qwen35: Path, way: Literal["triton", "chunked"]
) -> None:
    counted = activations(small_qwen35, way=way).text
    network: Any = make_model(small_qwen35).network
    core = network.model.language_model
    core.config._attn_implementation = register_grouped_attention()
    with delta.computing(way):
        assert text_kept(core, torch.float32) == counted
    others = [activations(small_qwen35, way=each).text for each in ("reference", "chunked")]
    assert all(counted.whole < other.whole for other in others) == (way == "triton")


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_peak_of_an_update_with_the_kernels_is_what_a_plan_counts(
    checkpointing: bool, tmp_path: Path
) -> None:
    folder = build_small_model(tmp_path / "model", hidden=128, linear_width=32)
    peak, counted = peak_of_an_update(
        folder, tmp_path, checkpointing=checkpointing, prompts=1, way="triton"
    )
    # The backward pass has sums of its own, which weigh more in one of four layers than of 32.
    assert 0.95 < counted / peak < 1.15
