"""What vLLM is started with; a stand-in checks memory at its start as vLLM does."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stage_fixtures import make_model

from bas_opd.config import load_config, preset
from bas_opd.config.loading import dump
from bas_opd.data.views import full_view
from bas_opd.errors import ModelError
from bas_opd.model.encoding import ViewEncoder
from bas_opd.rollout import SamplingSettings, vllm_engine
from bas_opd.rollout.vllm_engine import VllmEngine, VllmSettings

GIB = 2**30


@dataclass
class Gpu:
    """A GPU of which the trainer has left little."""

    total: int = 80 * GIB
    free: int = 20 * GIB

    def start(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Start as vLLM's worker does, which looks at this even where the cache has a size."""
        share = asked.get("gpu_memory_utilization", 0.92)
        assert 0 < share <= 1
        if self.free < math.ceil(self.total * share):
            raise ValueError(
                "Free memory on device cuda:0 on startup is less than desired GPU memory "
                "utilization. Decrease GPU memory utilization or reduce GPU memory used by other "
                "processes."
            )
        return asked


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()
    modules: dict[str, Any] = {
        "": SimpleNamespace(EngineArgs=dict, LLMEngine=SimpleNamespace(from_engine_args=gpu.start)),
        "v1.sample.logits_processor": SimpleNamespace(LogitsProcessor=object),
    }
    monkeypatch.setattr(vllm_engine, "_vllm", lambda module="": modules[module])
    monkeypatch.setattr(vllm_engine, "ENVIRONMENT", {})
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (gpu.free, gpu.total))
    return gpu


@pytest.fixture(scope="module")
def model(small_qwen3vl: Path) -> Any:
    return make_model(small_qwen3vl)


def started(model: Any, device: str, cache_gib: float = 4.0) -> dict[str, Any]:
    """What vLLM is started with beside a model on a device."""
    views = ViewEncoder(model.processor, full_view)
    settings = VllmSettings(folder="somewhere", context=512, cache_gib=cache_gib)
    engine = VllmEngine(model, views, SamplingSettings(), settings)
    engine.model = SimpleNamespace(  # type: ignore[assignment]
        device=torch.device(device), precision=torch.bfloat16
    )
    return engine._started()


def test_vllm_starts_on_a_gpu_of_which_the_trainer_holds_most(model: Any, gpu: Gpu) -> None:
    asked = started(model, "cuda")
    assert asked["kv_cache_memory_bytes"] == 4 * GIB
    assert asked["gpu_memory_utilization"] == pytest.approx(4 / 80)
    assert asked["enable_sleep_mode"]
    gpu.free = math.ceil(4.01 * GIB)
    assert started(model, "cuda")["kv_cache_memory_bytes"] == 4 * GIB


def test_on_a_cpu_no_share_of_a_gpu_is_asked_for(model: Any, gpu: Gpu) -> None:
    gpu.free = gpu.total
    asked = started(model, "cpu")
    assert "gpu_memory_utilization" not in asked
    assert asked["kv_cache_memory_bytes"] == 4 * GIB
    assert asked["enforce_eager"]
    assert not asked["enable_sleep_mode"]


@pytest.mark.parametrize("cache_gib", [30.0, 500.0])
def test_a_cache_for_which_the_gpu_has_no_room_is_a_sentence_that_names_its_setting(
    cache_gib: float, model: Any, gpu: Gpu
) -> None:
    with pytest.raises(ModelError) as failed:
        started(model, "cuda", cache_gib)
    said = str(failed.value)
    assert "kv_cache_memory_bytes is set by rollout.engine_cache_gib" in said
    known = dump(load_config(preset("tiny"), ["model.path=m", "data.path=d"]))
    named = re.findall(r"\b([a-z]+)\.([a-z_]+)", said)
    assert len(named) == 4
    for section, setting in named:
        assert setting in known[section]
