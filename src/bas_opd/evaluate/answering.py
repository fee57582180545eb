"""Models that answer questions: one in this process, or one behind a server."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bas_opd.data.images import decode_image
from bas_opd.evaluate.questions import Output, Picture, Question, View
from bas_opd.evaluate.weights import Checkpoint, weights_fingerprint
from bas_opd.serving.client import ChatClient, Message, RefusedError
from bas_opd.types import Hooks, Prompt

if TYPE_CHECKING:
    from bas_opd.model.encoding import Ahead
    from bas_opd.model.processing import Pixels
    from bas_opd.model.vlm import VisionLanguageModel
    from bas_opd.rollout.greedy import Greedy

SEED = 42
"""The paper's, beside temperature 0 (Sec. 3.1); greedy decoding draws no random number."""

SHOWN: dict[View, str] = {"full": "one full image", "crop": "one crop"}


class Answerer(Protocol):
    """A model that answers questions."""

    def answers(self, questions: Sequence[Question]) -> Iterator[tuple[int, Output]]:
        """Yield the index of each question and its answer, in any order."""
        ...


@dataclass(frozen=True, kw_only=True)
class ModelAnswers:
    """Greedy answers of a loaded model, many questions at a time."""

    model: VisionLanguageModel
    max_response_tokens: int
    prompts_per_batch: int
    prompts: dict[str, Prompt] | None = None
    """Question id -> encoded prompt, filled here, for one set of questions in one view. Pass it on
    to other models with the same processor, and they decode no picture again."""
    threads: int = 0
    """That open the pictures of questions which were announced."""
    hooks: Hooks = field(default_factory=Hooks)
    advice: str = ""
    lower: str = "--max-pixels or --max-response-tokens, which makes it another evaluation"
    """See `in_smaller_batches`."""

    @cached_property
    def greedy(self) -> Greedy:
        """What answers; it keeps the batch size that fitted into memory."""
        from bas_opd.rollout.greedy import Greedy

        return Greedy(
            self.model,
            max_response_tokens=self.max_response_tokens,
            prompts_per_batch=self.prompts_per_batch,
            hooks=self.hooks,
            advice=self.advice,
            lower=self.lower,
        )

    def answers(self, questions: Sequence[Question]) -> Iterator[tuple[int, Output]]:
        """Yield the index of each question and its answer, batch by batch."""
        processor = self.model.processor
        for index, tokens in self.greedy(self._encoded(questions)):
            is_cut = int(tokens[-1]) not in processor.eos_ids
            yield index, Output(text=processor.decode(tokens), is_cut=is_cut)

    def expect(self, questions: Sequence[Question] = ()) -> None:
        """Start on the pictures of questions that will be asked, in this order; drop all others."""
        known = self.prompts or {}
        self._ahead.expect(
            {q.picture.key: partial(self._look, q.picture) for q in questions if q.id not in known}
        )

    def close(self) -> None:
        """Open no further picture."""
        self._ahead.close()

    @cached_property
    def _ahead(self) -> Ahead[Pixels]:
        from bas_opd.model.encoding import Ahead

        return Ahead(self.threads, poll=self.hooks.poll)

    def _encoded(self, questions: Sequence[Question]) -> list[Prompt]:
        """Return the prompts; those about the same picture share its pixels."""
        prompts = {} if self.prompts is None else self.prompts
        about: dict[str, Prompt] = {}
        for question in questions:
            if question.id not in prompts:
                self.hooks.poll()
                prompts[question.id] = self._prompt(question, about)
        return [prompts[question.id] for question in questions]

    def _prompt(self, question: Question, about: dict[str, Prompt]) -> Prompt:
        processor, picture = self.model.processor, question.picture
        if picture.key in about:
            return processor.encode_again(about[picture.key], question.prompt)
        look = partial(self._look, picture)
        pixels = self._ahead.take(picture.key, look, what=f"The picture {picture.name}")
        prompt = about[picture.key] = processor.prompt(pixels, question.prompt)
        return prompt

    def _look(self, picture: Picture) -> Pixels:
        pixels = self.model.processor.look(picture.decode())
        # The first layer rounds them to this precision anyway, and they take half the memory.
        return replace(pixels, values=pixels.values.to(self.model.precision))


@dataclass(frozen=True, kw_only=True)
class LocalAnswerer:
    """A checkpoint on this machine that answers greedily.

    It is loaded at the first question, once for all benchmarks: a resumed evaluation with nothing
    left to ask needs no torch.
    """

    checkpoint: Checkpoint
    view: View = "full"
    device: str = "auto"
    max_response_tokens: int = 1024
    max_pixels: int | None = None
    prompts_per_batch: int = 16
    memory: Path | None = None
    """The file in which hashes of the checkpoint's files are kept."""
    prompts: dict[str, Prompt] | None = None
    """See `ModelAnswers.prompts`."""
    hooks: Hooks = field(default_factory=Hooks)

    @property
    def hashes(self) -> dict[str, str]:
        """File name -> sha256 of all files that define the checkpoint."""
        return self.checkpoint.hashes(memory=self.memory)

    @property
    def settings(self) -> dict[str, Any]:
        """The checkpoint and its decoding; answers are never shared between other settings."""
        return {
            "weights": weights_fingerprint(self.hashes),
            "decoding": f"greedy (temperature 0, seed {SEED}), {SHOWN[self.view]}, no thinking",
            "max_response_tokens": self.max_response_tokens,
            "max_pixels": self.max_pixels,
        }

    @cached_property
    def _loaded(self) -> ModelAnswers:
        from transformers.utils import logging

        from bas_opd.model import loading
        from bas_opd.model.encoding import idle_threads

        logging.disable_progress_bar()
        model = loading.open_model(
            self.checkpoint.folder,
            adapter=self.checkpoint.adapter,
            device=self.device,
            max_pixels=self.max_pixels,
        )
        return ModelAnswers(
            model=model,
            threads=idle_threads(model.device),
            max_response_tokens=self.max_response_tokens,
            prompts_per_batch=self.prompts_per_batch,
            prompts=self.prompts,
            hooks=self.hooks,
        )

    def answers(self, questions: Sequence[Question]) -> Iterator[tuple[int, Output]]:
        places: dict[str, list[int]] = {}
        for place, question in enumerate(questions):
            self.hooks.poll()
            places.setdefault(question.picture.key, []).append(place)
        order = list(chain.from_iterable(places.values()))
        # A few batches of pictures at a time: thousands would fill the memory.
        stride = 8 * self.prompts_per_batch
        try:
            for start in range(0, len(order), stride):
                # The next ones are opened while these are answered.
                some = [questions[place] for place in order[start : start + 2 * stride]]
                self._loaded.expect(some)
                for index, output in self._loaded.answers(some[:stride]):
                    yield order[start + index], output
        finally:
            if "_loaded" in vars(self):
                self._loaded.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAnswerer:
    """A model behind a server, sent several questions at once.

    Thinking is off only if the server is told so, in its own words: `Endpoint.extra`.
    """

    client: ChatClient
    weights: str
    """A label for the served weights: a server does not say which weights it has under a name."""
    max_response_tokens: int = 1024
    poll: Callable[[], None] = lambda: None

    @property
    def settings(self) -> dict[str, Any]:
        """The model, as far as it has a name, and its decoding; see `LocalAnswerer.settings`."""
        endpoint = self.client.endpoint
        return {
            "url": endpoint.url,
            "model": endpoint.model,
            "weights": self.weights,
            "extra": dict(endpoint.extra),
            "decoding": f"temperature 0, seed {SEED}, {SHOWN['full']}",
            "max_response_tokens": self.max_response_tokens,
        }

    def answers(self, questions: Sequence[Question]) -> Iterator[tuple[int, Output]]:
        yield from self.client.in_parallel(self._answer, questions, poll=self.poll)

    def _answer(self, question: Question) -> Output:
        messages = [_message(question)]
        try:
            reply = self.client.ask(messages, max_tokens=self.max_response_tokens, seed=SEED)
        except RefusedError as error:
            return Output(text="", is_cut=False, refusal=str(error))
        note = "; ".join(reply.fallbacks)
        is_cut = None if reply.finish is None else reply.finish == "length"
        return Output(text=reply.text, is_cut=is_cut, note=note)


def _message(question: Question) -> Message:
    """Return the one user message: the picture, then the text."""
    url = _data_url(question.picture)
    return {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "text", "text": question.prompt},
        ],
    }


def _data_url(picture: Picture) -> str:
    """Return a picture that every server sees as the model in this process would.

    Servers differ in how they treat rotation and transparency, so only a JPEG without EXIF is sent
    as it is; anything else is decoded here, upright and on white, and sent without loss.
    """
    data = picture.read()
    decoded = decode_image(data, name=picture.name)
    kind = "jpeg"
    if not data.startswith(b"\xff\xd8") or b"Exif\0" in data[:65536]:
        stream = io.BytesIO()
        decoded.save(stream, "PNG", compress_level=1)
        kind, data = "png", stream.getvalue()
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
