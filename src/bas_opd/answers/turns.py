"""Where an output runs on from its answer into a question that it invents."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice

from bas_opd.answers.answer import DEFERRED, Answer

_ASKS = (
    r"(?:(?:next |new |another )?(?:question|problem|instruction)|q|user|human|example(?= ?\d))"
    r"(?: ?\d{1,3})?"
)
_QUESTION = re.compile(
    rf"\n(?:[^\w\n]{{0,4}}{_ASKS}\W?\*{{0,2}}:|#{{1,6}} {_ASKS}\W{{0,3}}\n|hint: please )", re.I
)
_HEAD = re.compile(rf"\W{{0,6}}(?:{_ASKS}\W|hint: please )", re.I)
_MOST_QUESTIONS = 2

Read = Callable[[str, bool | None], Answer]


def read_first_turn(text: str, read: Read, was_cut: bool | None) -> Answer:
    """Read a text up to the first question that follows an answer.

    A text that begins with its question and answers later is read as a whole.
    """
    questions = list(islice(_QUESTION.finditer(text), _MOST_QUESTIONS))
    for question in questions:
        answer = read(text[: question.start()], False)
        if answer.status == "answered":
            return answer
    is_plain = not questions or _HEAD.match(text)
    return read(text, was_cut) if is_plain else DEFERRED
