"""Small models and pictures for tests that run the stages."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image

from bas_opd.algorithm import Stages
from bas_opd.compute.clock import Clock
from bas_opd.data.views import crop_view, full_view
from bas_opd.distill.loss import DistillSettings
from bas_opd.learn import Distillation, Learner, OptimizerSettings
from bas_opd.model.loading import LoraSettings, load_model
from bas_opd.model.processing import Processor
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.rollout import Sampler, SamplingSettings
from bas_opd.select import Selector
from bas_opd.teacher import SelfTeacher
from bas_opd.types import Crop, Example, PromptBatch, Rollouts

SIZES = [(128, 96), (192, 128), (96, 96), (64, 160)]


def make_examples(folder: Path, n: int = 4) -> tuple[Example, ...]:
    """Return noisy pictures of several sizes, the last one without a crop."""
    examples = []
    for i in range(n):
        path = folder / f"picture-{i}.png"
        width, height = SIZES[i % len(SIZES)]
        pixels = numpy.random.default_rng(i).integers(0, 256, (height, width, 3), numpy.uint8)
        Image.fromarray(pixels).save(path)
        crop = Crop(area=0.2, box=(4.0, 8.0, 52.0, 60.0)) if i < n - 1 else None
        examples.append(Example(id=f"e{i}", image=path, question="Which? " * (i + 1), crop=crop))
    return tuple(examples)


def make_model(
    folder: Path,
    *,
    precision: torch.dtype = torch.float32,
    lora: LoraSettings | None = None,
    gradient_checkpointing: bool = False,
) -> VisionLanguageModel:
    """Load a small model that has opinions, ends its responses, and shows mistakes with padding.

    A fresh model is all but uniform and never stops, and its pad embedding is zero, which hides
    padding that leaks.
    """
    network = load_model(
        folder,
        device=torch.device("cpu"),
        lora=lora,
        gradient_checkpointing=gradient_checkpointing,
    )
    processor = replace(Processor.load(folder), eos_ids=tuple(range(0, 300, 12)))
    model = VisionLanguageModel(network, processor, precision=precision)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        embedding = next(p for n, p in network.named_parameters() if "embed_tokens" in n)
        embedding.copy_(torch.randn(embedding.shape, generator=generator) * 0.1)
    return model


def draw(
    model: VisionLanguageModel,
    examples: tuple[Example, ...],
    *,
    step: int = 3,
    per_prompt: int = 3,
    tokens: int = 9,
) -> Rollouts:
    """Sample a batch of rollouts."""
    settings = SamplingSettings(per_prompt=per_prompt, max_response_tokens=tokens)
    return Sampler(model, full_view, settings).generate(PromptBatch(step=step, examples=examples))


def crop_teacher(model: VisionLanguageModel, **options: Any) -> SelfTeacher:
    """Return the teacher of BAS-OPD: it sees the crop."""
    return SelfTeacher(model, crop_view, **options)


def make_stages(
    model: VisionLanguageModel, selector: Selector, sampling: SamplingSettings, k: int = 20
) -> Stages:
    """Return the stages of BAS-OPD around a model."""
    return Stages(
        policy=Sampler(model, full_view, sampling),
        selector=selector,
        teacher=crop_teacher(model),
        learner=Learner(model, OptimizerSettings()),
        objective=partial(Distillation, head=model.logits, settings=DistillSettings(k=k)),
        clock=Clock(model.device),
    )
