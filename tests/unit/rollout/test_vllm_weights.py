"""What vLLM holds is compared with what it was sent; stand-ins hold it as vLLM does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bas_opd.rollout.vllm_weights import content, counted, wrong_weights

PRECISIONS = [torch.float32, torch.bfloat16]
WIDTH = 300
"""More inputs than are read at once."""


class Head(nn.Module):
    """A layer that computes with a packed copy, and keeps its weight."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight
        self.cpu_linear: Any = None
        self.quant_method = SimpleNamespace(apply=lambda layer, x: layer.cpu_linear(x))

    def pack(self) -> None:
        packed = self.weight.detach().clone()
        self.cpu_linear = lambda x: x @ packed.T


class Packed(Head):
    """A layer that keeps the copy alone."""

    def pack(self) -> None:
        super().pack()
        self.input_size = self.weight.shape[1]
        self.weight = nn.Parameter(self.weight.detach()[:0, 0])


class Engine(nn.Module):
    """A model with vLLM's names: joined projections, a padded vocabulary and a tied head."""

    packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "qkv": ["qkv"]}  # noqa: RUF012
    hf_to_vllm_mapper = SimpleNamespace(
        map_name=lambda name: None if "mtp" in name else name.removeprefix("model.")
    )

    def __init__(self, sent: dict[str, Tensor], dtype: torch.dtype) -> None:
        super().__init__()
        own = {name: weight.to(dtype, copy=True) for name, weight in sent.items()}
        parts = [own[f"model.attn.{part}_proj.weight"] for part in "qkv"]
        self.attn = nn.Module()
        self.attn.qkv_proj = Packed(nn.Parameter(torch.cat(parts)))
        self.norm = nn.Parameter(own["model.norm"].to(torch.float32))
        self.conv = nn.Parameter(own["model.conv"].mT.contiguous())
        self.embed = nn.Parameter(torch.cat([own["model.embed"], torch.zeros(3, WIDTH)]).to(dtype))
        self.lm_head = Head(self.embed)
        self.attn.qkv_proj.pack()
        self.lm_head.pack()


@pytest.fixture(params=PRECISIONS, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture
def weights() -> dict[str, Tensor]:
    torch.manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed": (11, WIDTH),
        "model.norm": (7,),
        "model.conv": (6, 4),
        "model.mtp.unused": (3,),
        **{f"model.attn.{part}_proj.weight": (5, WIDTH) for part in "qkv"},
    }
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def wrong(engine: Engine, weights: dict[str, Tensor], dtype: torch.dtype) -> list[str]:
    """What is wrong when an engine holds something and was sent weights."""
    sent = dict[str, int]()
    passed = dict(counted(weights.items(), sent, dtype))
    assert all(passed[name] is weight for name, weight in weights.items())
    return wrong_weights(engine, sent, dtype, Head)


def test_weights_that_arrived_are_right(weights: dict[str, Tensor], dtype: torch.dtype) -> None:
    """Joined, packed, padded, in another order and tied."""
    assert wrong(Engine(weights, dtype), weights, dtype) == []


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ("model.attn.q_proj.weight", ["attn.qkv_proj.weight"]),
        ("model.attn.v_proj.weight", ["attn.qkv_proj.weight"]),
        ("model.norm", ["norm"]),
        ("model.conv", ["conv"]),
        ("model.embed", ["embed", "lm_head.weight"]),
    ],
)
def test_one_other_value_names_the_weight(
    changed: str, named: list[str], weights: dict[str, Tensor], dtype: torch.dtype
) -> None:
    engine = Engine(weights, dtype)
    weights[changed].flatten()[-1] *= 1.01  # At least one place of bfloat16.
    assert wrong(engine, weights, dtype) == named


def test_a_head_that_computes_with_an_older_copy_is_named(
    weights: dict[str, Tensor], dtype: torch.dtype
) -> None:
    engine = Engine(weights, dtype)
    weights["model.embed"][7, -1] *= 1.01
    with torch.no_grad():
        engine.embed[:11].copy_(weights["model.embed"])
    assert wrong(engine, weights, dtype) == ["lm_head.weight"]
    engine.lm_head.pack()
    assert wrong(engine, weights, dtype) == []


def test_a_weight_that_was_not_sent_is_named_even_if_it_is_zero(
    weights: dict[str, Tensor], dtype: torch.dtype
) -> None:
    weights["model.conv"].zero_()
    engine = Engine(weights, dtype)
    del weights["model.conv"]
    assert wrong(engine, weights, dtype) == ["conv"]


def test_a_weight_for_which_there_is_no_place_is_named(
    weights: dict[str, Tensor], dtype: torch.dtype
) -> None:
    engine = Engine(weights, dtype)
    assert wrong(engine, weights | {"model.other": torch.ones(2)}, dtype) == ["other"]


def test_what_a_tensor_holds_depends_on_its_rounded_values_only() -> None:
    values = torch.randn(5_000_000, generator=torch.Generator().manual_seed(0))
    held = content(values, torch.bfloat16)
    assert held == content(values.bfloat16().flip(0), torch.bfloat16)
    assert held == content(values.bfloat16().double().view(1000, -1).mT, torch.bfloat16)
    assert held != content(values, torch.float32)
    assert content(-torch.zeros(3), torch.float32) == content(torch.zeros(0), torch.float32) == 0
    assert content(torch.tensor([1.0, -1.0]), torch.float32) != 0


def test_two_values_of_bfloat16_never_count_alike() -> None:
    every = (torch.arange(2**16, dtype=torch.int32) << 16).view(torch.float32)
    every = every[every.isfinite()]
    seen = {content(value, torch.bfloat16) for value in every[::7]}
    assert len(seen) == len(every[::7])


def test_changes_of_two_values_do_not_cancel() -> None:
    """One goes up by as many places of bfloat16 as the other goes down."""
    for power in range(-9, 9):
        equal, apart = torch.full((2,), 2.0**power), 2.0**power * torch.tensor([0.5, 2.0])
        assert equal.view(torch.int32).sum() == apart.view(torch.int32).sum()
        assert content(equal, torch.bfloat16) != content(apart, torch.bfloat16)
