"""The stages take their settings from the configuration, default for default."""

from __future__ import annotations

import dataclasses
import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import BaseModel

from bas_opd.config.schema import (
    SERVED,
    Config,
    DistillConfig,
    LoraConfig,
    OptimConfig,
    RolloutConfig,
    SelectConfig,
    TeacherConfig,
)
from bas_opd.distill.loss import DistillSettings
from bas_opd.learn import OptimizerSettings
from bas_opd.model.loading import LoraSettings
from bas_opd.rollout import SamplingSettings
from bas_opd.run import loop, state
from bas_opd.run.engines import NOT_SAMPLING
from bas_opd.select import LearnedSelector
from bas_opd.teacher import SelfTeacher


def defaults(stage: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(stage):
        return {field.name: field.default for field in dataclasses.fields(stage)}
    parameters = inspect.signature(stage).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


@pytest.mark.parametrize(
    ("section", "stage", "elsewhere"),
    [
        (RolloutConfig, SamplingSettings, NOT_SAMPLING),
        (SelectConfig, LearnedSelector, {"policy", "query_ratio", "budget", "correctness"}),
        (DistillConfig, DistillSettings, set()),
        (TeacherConfig, SelfTeacher, {"path", "server", "view", *SERVED}),
        (OptimConfig, OptimizerSettings, set()),
        (LoraConfig, LoraSettings, {"rank"}),
    ],
)
def test_a_stage_built_by_hand_has_the_defaults_of_the_configuration(
    section: type[BaseModel], stage: Any, elsewhere: set[str]
) -> None:
    ours = defaults(stage)
    for name, field in section.model_fields.items():
        if name not in elsewhere:
            assert float_or_same(ours[name]) == float_or_same(field.default), name


def float_or_same(value: Any) -> Any:
    """A ratio is an exact decimal in the configuration and may be a float by hand."""
    return value if isinstance(value, str | bool | None) else float(value)


def test_kernels_are_on_record_where_they_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert state.gpu_kernels() == {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(state, "implementation", lambda _, learns: "chunked" if learns else "fla")
    for has_triton in (True, False):
        monkeypatch.setattr(state, "has_triton", lambda has=has_triton: has)
        assert state.gpu_kernels() == {
            "linear_attention": {"learning": "chunked", "sampling": "fla"},
            "triton": has_triton,
        }


@pytest.mark.parametrize(
    ("device", "kernels", "has_them"),
    [("cuda", "auto", True), ("cuda", "reference", False), ("cpu", "auto", False)],
)
def test_a_run_without_kernels_of_its_own_names_none(
    device: str, kernels: str, has_them: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "gpu_kernels", lambda: {"triton": True})
    given = {"path": "model", "device": device, "kernels": kernels}
    config = Config.model_validate({"model": given, "data": {"path": "data"}})
    data: Any = SimpleNamespace(fingerprint="", examples=())
    assert ("triton" in loop.identity_of(config, data, 1)["environment"]) == has_them


def test_what_keeps_a_run_from_the_fast_paths_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(*, head: object, rounded: bool = True, **settings: Any) -> list[str]:
        config: Any = SimpleNamespace(
            distill=DistillConfig(k=settings.get("k", 100)),
            rollout=RolloutConfig(top_p=settings.get("top_p", 1.0)),
        )
        precision = torch.bfloat16 if rounded else torch.float32
        model: Any = SimpleNamespace(device=device, fast_head=head, precision=precision)
        return state.slow_paths(config, model)

    monkeypatch.setattr(state, "has_kernels", lambda device: device.type == "cuda")
    device = torch.device("cpu")
    assert said(head=None, k=129, top_p=0.9) == []
    device = torch.device("cuda")
    assert said(head=object()) == []
    assert said(head=None, rounded=False) == []
    (found,) = said(head=None)
    assert "computed in float32" in found
    loss, race = said(head=object(), k=129, top_p=0.9)
    assert "distill.k is 129, and the kernels of the loss take at most 128" in loss
    assert "rollout.top_p is below 1" in race
    monkeypatch.setattr(state, "has_kernels", lambda device: False)
    assert said(head=object(), k=129, top_p=0.9) == []
