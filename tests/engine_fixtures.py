"""A small model with vLLM beside it, for tests that compare the two."""

from __future__ import annotations

from pathlib import Path

import torch

from bas_opd.data.views import full_view
from bas_opd.model.encoding import ViewEncoder
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.rollout import Sampler, SamplingSettings
from bas_opd.rollout.vllm_engine import VllmEngine, VllmSettings

SETTINGS = SamplingSettings(per_prompt=4, max_response_tokens=24)


class Beside:
    """A small model, and vLLM beside it."""

    def __init__(
        self, model: VisionLanguageModel, folder: Path, settings: SamplingSettings
    ) -> None:
        vllm = VllmSettings(folder=str(folder), context=512, cache_gib=0.25)
        self.model = model
        self.sampler = Sampler(model, full_view, settings)
        self.engine = VllmEngine(model, ViewEncoder(model.processor, full_view), settings, vllm)
        self.version = 0

    def sync(self) -> None:
        self.version += 1
        self.engine.load_weights(self.model.trainable(), self.version)

    @torch.no_grad()
    def train(self) -> None:
        """Change every weight, as an update does, but more."""
        generator = torch.Generator().manual_seed(self.version)
        for weight in self.model.trainable().values():
            noise = torch.randn(weight.shape, generator=generator)
            weight += 0.1 * (weight.std() if weight.numel() > 1 else 1.0) * noise
