"""Whoever is asked: a model in this process, or one behind a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bas_opd.data.images import decode_image
from bas_opd.evaluate.questions import Question
from bas_opd.evaluate.store import key_of
from bas_opd.evaluate.weights import weights_fingerprint, weights_hashes

if TYPE_CHECKING:
    from bas_opd.model.vlm import VisionLanguageModel

SEED = 42
"""The paper's, beside temperature 0 (Sec. 3.1); greedy decoding leaves it nothing to decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a model said to one question."""

    text: str
    is_cut: bool
    """Whether it ran into the limit of tokens before it ended."""
    note: str = ""
    """What had to be done to get it, if anything."""
    refusal: str = ""
    """Why a server would not answer, if so: then there is no text."""


class Answerer(Protocol):
    """A model that can be asked."""

    @property
    def identity(self) -> str:
        """A hash of the model and of how it decodes: another one never gets these answers."""
        ...

    def answers(self, questions: Sequence[Question]) -> Iterator[tuple[int, Output]]:
        """Yield the place of each question and its answer, as they come."""
        ...


@dataclass(frozen=True, kw_only=True)
class LocalAnswerer:
    """A checkpoint on this machine, answering greedily from the full image, many at a time.

    It is loaded at the first question, once for all benchmarks: a resumed evaluation with nothing
    left to ask needs no torch.
    """

    folder: Path
    device: str = "auto"
    max_response_tokens: int = 1024
    max_pixels: int | None = None
    prompts_per_batch: int = 16
    memory: Path | None = None
    """Where the hashes of its files are remembered."""
    poll: Callable[[], None] = lambda: None

    @property
    def hashes(self) -> dict[str, str]:
        """File name -> sha256, of all that makes the checkpoint the one it is."""
        return weights_hashes(self.folder, memory=self.memory)

    @property
    def settings(self) -> dict[str, Any]:
        """The checkpoint, and how it decodes."""
        return {
            "weights": weights_fingerprint(self.hashes),
            "decoding": f"greedy (temperature 0, seed {SEED}), one full image, no thinking",
            "max_response_tokens": self.max_response_tokens,
            "max_pixels": self.max_pixels,
        }

    @property
    def identity(self) -> str:
        return key_of(**self.settings)

    @cached_property
    def _model(self) -> VisionLanguageModel:
        from transformers.utils import logging

        from bas_opd.config.schema import Config, DataConfig, ModelConfig
        from bas_opd.run.state import load_policy

        logging.disable_progress_bar()
        place = ModelConfig(path=str(self.folder), device=self.device, max_pixels=self.max_pixels)
        return load_policy(Config(model=place, data=DataConfig(path="unused")))

    def answers(self, questions: Sequence[Question]) -> Iterator[tuple[int, Output]]:
        from bas_opd.rollout.greedy import greedy_responses

        model = self._model
        # Some batches' worth of pictures at a time: thousands would fill the memory.
        stride = 8 * self.prompts_per_batch
        for start in range(0, len(questions), stride):
            prompts = []
            for question in questions[start : start + stride]:
                self.poll()
                picture = decode_image(question.picture(), name=f"of question {question.id}")
                prompts.append(model.processor.encode(picture, question.prompt))
            responses = greedy_responses(
                model,
                prompts,
                max_response_tokens=self.max_response_tokens,
                prompts_per_batch=self.prompts_per_batch,
            )
            for number, (place, tokens) in enumerate(responses, start=1):
                is_cut = int(tokens[-1]) not in model.processor.eos_ids
                text = model.processor.decode(tokens)
                yield start + place, Output(text=text, is_cut=is_cut)
                # Between batches alone: what was decoded is handed over, and not decoded again.
                if number % self.prompts_per_batch == 0:
                    self.poll()
