"""Everything a run is made of, built from its configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from bas_opd.algorithm import Stages
from bas_opd.config.schema import Config
from bas_opd.distill.loss import DistillSettings
from bas_opd.learner import Learner, OptimiserSettings
from bas_opd.ledger import Ledger
from bas_opd.model.loading import LoraSettings, load_model, resolve_device
from bas_opd.model.processing import Processor
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.rollout import Sampler, SamplingSettings
from bas_opd.runtime.clock import Clock
from bas_opd.select import build_selector
from bas_opd.teacher import CropTeacher


@dataclass(slots=True, kw_only=True)
class TrainState:
    """The stages of a step with all that they remember, the ledger, and the step to come."""

    model: VisionLanguageModel
    stages: Stages
    ledger: Ledger = field(default_factory=Ledger)
    step: int = 0

    @classmethod
    def build(cls, config: Config) -> TrainState:
        """Load the model and set every stage to its beginning (Alg. 1, line 1)."""
        model = _load(config)
        return cls(
            model=model,
            stages=Stages(
                policy=Sampler(
                    model,
                    SamplingSettings(
                        seed=config.run.seed,
                        max_prompt_tokens=config.data.max_prompt_tokens,
                        **config.rollout.model_dump(exclude={"prompts_per_step"}),
                    ),
                ),
                selector=build_selector(**config.select.model_dump(exclude={"query_ratio"})),
                teacher=CropTeacher(model, **config.teacher.model_dump()),
                learner=Learner(
                    model,
                    optimiser=OptimiserSettings(**config.optim.model_dump()),
                    distill=DistillSettings(**config.distill.model_dump()),
                ),
                clock=Clock(model.device),
            ),
        )


def _load(config: Config) -> VisionLanguageModel:
    device = resolve_device(config.model.device)
    settings = config.lora
    lora = LoraSettings(**settings.model_dump(), seed=config.run.seed) if settings.rank else None
    network = load_model(
        config.model.path,
        device=device,
        gradient_checkpointing=config.model.gradient_checkpointing,
        lora=lora,
    )
    processor = Processor.load(
        config.model.path,
        **config.model.model_dump(include={"thinking", "min_pixels", "max_pixels"}),
    )
    precision = {
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
        "auto": torch.bfloat16 if device.type == "cuda" else torch.float32,
    }[config.model.precision]
    return VisionLanguageModel(network, processor, precision=precision)
