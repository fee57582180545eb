"""Put questions to a model, and grade what it answers greedily."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from bas_opd.data.images import open_crop, open_image
from bas_opd.evaluate.finesearch import grade
from bas_opd.model.processing import Processor
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.rollout.greedy import greedy_responses
from bas_opd.types import Example, Prompt

View = Literal["full", "crop"]


def _nobody(_: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """One question, what the model said, and whether that was right."""

    id: str
    kind: str
    answer: str
    output: str
    is_correct: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Posed:
    """An example with its prompt: what many models can be asked after one decoding."""

    example: Example
    prompt: Prompt


def evaluate(
    model: VisionLanguageModel,
    examples: Sequence[Example],
    *,
    view: View = "full",
    prompts_per_batch: int = 256,
    max_response_tokens: int = 24,
    on_done: Callable[[int], None] = _nobody,
) -> tuple[Graded, ...]:
    """Grade a model on examples, from their full images or from their privileged crops."""
    return answer(
        model,
        pose(model.processor, examples, view=view),
        prompts_per_batch=prompts_per_batch,
        max_response_tokens=max_response_tokens,
        on_done=on_done,
    )


def pose(processor: Processor, examples: Sequence[Example], *, view: View) -> tuple[Posed, ...]:
    """Encode each example in one view; for `crop`, those without a crop are left out."""
    opened = {"full": lambda example: open_image(example.image), "crop": open_crop}[view]
    return tuple(
        Posed(example=example, prompt=processor.encode(opened(example), example.question))
        for example in examples
        if view == "full" or example.has_crop
    )


def answer(
    model: VisionLanguageModel,
    posed: Sequence[Posed],
    *,
    prompts_per_batch: int,
    max_response_tokens: int,
    on_done: Callable[[int], None] = _nobody,
) -> tuple[Graded, ...]:
    """Let a model answer, and grade it; `on_done` hears how many are done and may raise."""
    outputs: dict[int, str] = {}
    for place, tokens in greedy_responses(
        model,
        [each.prompt for each in posed],
        max_response_tokens=max_response_tokens,
        prompts_per_batch=prompts_per_batch,
    ):
        outputs[place] = model.processor.decode(tokens)
        on_done(len(outputs))
    return tuple(_graded(each.example, outputs[place]) for place, each in enumerate(posed))


def _graded(example: Example, output: str) -> Graded:
    return Graded(
        id=example.id,
        kind=example.kind,
        answer=example.answer,
        output=output,
        is_correct=grade(output, example.answer),
    )
