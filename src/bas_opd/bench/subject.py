"""What is timed: a model, noisy pictures and responses of random tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from PIL import Image

from bas_opd import disk
from bas_opd.data.images import open_image
from bas_opd.errors import ConfigError
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.types import Crop, Example, Prompt, Rollouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much work a step is."""

    prompts: int
    per_prompt: int
    side: int
    """Of a picture, in pixels."""
    tokens: int
    """Of a response; its mean where lengths differ."""
    ratio: float = 0.25
    """Share of the rows that are selected."""
    micro_batch: int = 4096
    """Tokens of a pass of teacher or student."""

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ConfigError(
                f"The share of the rows selected is {self.ratio:g}, but must lie above 0 and at "
                "most at 1. Correct --ratio."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model with the examples it is measured on."""

    model: VisionLanguageModel
    examples: tuple[Example, ...]
    size: Size

    def prompts(self) -> tuple[Prompt, ...]:
        """Open the pictures and encode them with their questions."""
        encode = self.model.processor.encode
        return tuple(encode(open_image(e.image), e.question) for e in self.examples)

    def rollouts(self) -> Rollouts:
        """Return responses of random text, from half to one and a half times the mean length."""
        torch.manual_seed(0)
        size = self.size
        rows = len(self.examples) * size.per_prompt
        lengths = torch.linspace(size.tokens / 2, size.tokens * 3 / 2, rows).round().long()
        shape = (rows, int(lengths.max()))
        return Rollouts(
            step=0,
            examples=self.examples,
            prompts=self.prompts(),
            per_prompt=size.per_prompt,
            tokens=torch.randint(256, shape),
            lengths=lengths[torch.randperm(rows)],
            logprobs=torch.zeros(shape),
            entropies=None,
        )

    def selected(self, rollouts: Rollouts) -> list[int]:
        """Return rows drawn uniformly; they cover many prompts, so sharing saves least."""
        order = torch.randperm(len(rollouts), generator=torch.Generator().manual_seed(0))
        return sorted(order[: max(1, int(self.size.ratio * len(rollouts)))].tolist())


def endless(model: VisionLanguageModel) -> VisionLanguageModel:
    """Let no response end before the limit, so that all sides draw the same number of tokens."""
    processor = model.processor
    never = (*processor.suppressed_ids, *processor.eos_ids)
    model.processor = replace(processor, suppressed_ids=never)
    return model


def pictures(folder: Path, n: int, side: int) -> tuple[Example, ...]:
    """Write noisy pictures; return them with crops of half their side and unequal questions."""
    examples = []
    for i in range(n):
        path = folder / f"{i}.png"
        noise = Image.effect_noise((side, side), 60 + i).convert("RGB")
        disk.by_library(path, partial(noise.save, compress_level=1), path)
        box = (side / 4, side / 4, side * 3 / 4, side * 3 / 4)
        question = "What is the color of the sign?" + " Look twice." * (i % 3)
        examples.append(
            Example(id=str(i), image=path, question=question, crop=Crop(area=1 / 4, box=box))
        )
    return tuple(examples)
