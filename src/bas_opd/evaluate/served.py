"""The model under test behind a server: one full image and one text a question."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bas_opd.data.images import decode_image
from bas_opd.evaluate.answering import SEED, Output
from bas_opd.evaluate.questions import Question
from bas_opd.evaluate.store import key_of
from bas_opd.serving.client import ChatClient, Message, RefusedError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAnswerer:
    """A model that somebody else runs, asked for several answers at once.

    Thinking is off only where the server is told so, in its own words: `Endpoint.extra`.
    """

    client: ChatClient
    weights: str
    """What tells these weights from others that this server had under the same name: a server
    does not say."""
    max_response_tokens: int = 1024
    poll: Callable[[], None] = lambda: None

    @property
    def settings(self) -> dict[str, Any]:
        """The model, as far as it has a name, and how it decodes."""
        endpoint = self.client.endpoint
        return {
            "url": endpoint.url,
            "model": endpoint.model,
            "weights": self.weights,
            "extra": dict(endpoint.extra),
            "decoding": f"temperature 0, seed {SEED}, one full image",
            "max_response_tokens": self.max_response_tokens,
        }

    @property
    def identity(self) -> str:
        return key_of(**self.settings)

    def answers(self, questions: Sequence[Question]) -> Iterator[tuple[int, Output]]:
        """Yield the place of each question and its answer, as they come."""
        yield from self.client.in_parallel(self._answer, questions, poll=self.poll)

    def _answer(self, question: Question) -> Output:
        messages = [picture_message(question)]
        try:
            reply = self.client.ask(messages, max_tokens=self.max_response_tokens, seed=SEED)
        except RefusedError as error:
            return Output(text="", is_cut=False, refusal=str(error))
        note = "; ".join(reply.fallbacks)
        return Output(text=reply.text, is_cut=reply.finish == "length", note=note)


def picture_message(question: Question) -> Message:
    """Return the one user message: the picture, then the text."""
    url = _data_url(question.picture(), name=f"of question {question.id}")
    return {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "text", "text": question.prompt},
        ],
    }


def _data_url(data: bytes, *, name: str) -> str:
    """Return a picture that every server sees as the model in this process would.

    Servers differ in what they make of rotation and transparency, so only a JPEG without EXIF goes
    as it is; anything else is decoded here, upright and on white, and sent without loss.
    """
    picture = decode_image(data, name=name)
    kind = "jpeg"
    if not data.startswith(b"\xff\xd8") or b"Exif\0" in data[:65536]:
        stream = io.BytesIO()
        picture.save(stream, "PNG", compress_level=1)
        kind, data = "png", stream.getvalue()
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
