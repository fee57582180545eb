"""A rollout engine as the settings of a run describe it, and what is checked before the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bas_opd.compute.world import World
from bas_opd.config.schema import Config
from bas_opd.data.records import PreparedSet
from bas_opd.data.views import crop_sizes, full_sizes
from bas_opd.errors import ConfigError
from bas_opd.model.encoding import ViewEncoder
from bas_opd.model.family import checkpoint_config
from bas_opd.model.folder import local_folder
from bas_opd.model.processing import Processor
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.rollout import SamplingSettings
from bas_opd.run.footprint import wants_gpu
from bas_opd.types import Hooks

if TYPE_CHECKING:
    from bas_opd.rollout.vllm_engine import VllmEngine

NOT_SAMPLING = {
    *("prompts_per_step", "engine", "engine_cache_gib", "logprob_tolerance"),
    *("correct", "correct_cap", "ahead", "overlap"),
}
"""Settings of `RolloutConfig` that say nothing of how responses are drawn."""


def sampling_settings(config: Config) -> SamplingSettings:
    """Return how responses are drawn, whatever the engine."""
    return SamplingSettings(
        seed=config.run.seed,
        max_prompt_tokens=config.data.max_prompt_tokens,
        **config.rollout.model_dump(exclude=NOT_SAMPLING),
    )


def vllm_engine(
    config: Config, model: VisionLanguageModel, views: ViewEncoder, hooks: Hooks, world: World
) -> VllmEngine:
    """Return vLLM as an engine; it starts when weights are first loaded."""
    from bas_opd.rollout.vllm_engine import VllmEngine, VllmSettings

    wanted = config.data.max_prompt_tokens + config.rollout.max_response_tokens
    settings = VllmSettings(
        folder=str(local_folder(config.model.path)),
        context=min(wanted, _positions(config)),
        cache_gib=config.rollout.engine_cache_gib,
        tolerance=config.rollout.logprob_tolerance,
    )
    return VllmEngine(model, views, sampling_settings(config), settings, hooks, world)


def check_engine(config: Config, processor: Processor, data: PreparedSet) -> str:
    """Return the version of vLLM; raise if it is missing or could not sample this run."""
    from bas_opd.rollout.vllm_engine import check_vllm

    version = check_vllm()
    is_half = config.model.precision == "bfloat16"
    family = checkpoint_config(config.model.path).model_type
    if family == "qwen3_5" and not wants_gpu(config) and not is_half:
        raise ConfigError(
            "vLLM computes Qwen3.5 on a CPU in bfloat16 only, and this run would be in float32. "
            "Set rollout.engine=sampler, or model.precision=bfloat16."
        )
    if config.model.device.startswith("cuda:") and config.model.device != "cuda:0":
        raise ConfigError(
            f"model.device is {config.model.device}, but vLLM computes on the first GPU that it "
            "sees. Set model.device=cuda, and CUDA_VISIBLE_DEVICES to the number of the GPU."
        )
    room = _positions(config)
    shown = crop_sizes if config.method.name == "sft" else full_sizes
    prompts = (
        processor.prompt_length(size, example.question)
        for example in data.examples
        for size in shown(example)
    )
    longest = max(prompts, default=0) + config.rollout.max_response_tokens
    if longest > room:
        raise ConfigError(
            f"vLLM reads at most {room:,} tokens with this model (max_position_embeddings in its "
            f"config.json), but the longest prompt with the longest response has {longest:,}. "
            "Lower rollout.max_response_tokens or model.max_pixels, or set rollout.engine=sampler."
        )
    return version


def _positions(config: Config) -> int:
    """Return the most tokens that vLLM reads with the model."""
    settings = checkpoint_config(config.model.path)
    return int(settings.get_text_config().max_position_embeddings)
