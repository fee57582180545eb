"""Where an output runs on from its answer into a question that it invents."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice

from bas_opd.answers.answer import DEFERRED, Answer

_ASKS = (
    r"(?:(?:next |new |another )?(?:question|problem|instruction)|user|human|example(?= ?\d)"
    r"|q(?=[^\w\n]{0,3}[^\n]{3,300}\?))(?: ?\d{1,3})?"
)
_QUESTION = re.compile(
    rf"\n(?:[^\w\n]{{0,4}}{_ASKS}\W?\*{{0,2}}:|#{{1,6}} {_ASKS}\W{{0,3}}\n|hint: please )", re.I
)
_HEAD = re.compile(rf"\W{{0,6}}(?:{_ASKS}\W|hint: please )", re.I)
_ANNOUNCES = re.compile(r"\b(?:question|problem)\b", re.I)
_LONGEST_PREFACE = 300
_MOST_QUESTIONS = 2

Read = Callable[[str, bool | None], Answer]


def read_first_turn(text: str, read: Read, was_cut: bool | None) -> Answer:
    """Read a text up to the first question that follows an answer.

    A text that repeats its question first and answers later is read as a whole.
    """
    questions = list(islice(_QUESTION.finditer(text), _MOST_QUESTIONS))
    for question in questions:
        answer = read(text[: question.start()], False)
        if answer.status == "answered":
            return answer
    if questions and not _HEAD.match(text):
        preface = text[: questions[0].start()]
        is_repeated = len(preface) <= _LONGEST_PREFACE and _ANNOUNCES.search(preface)
        if len(questions) > 1 or not is_repeated:
            return DEFERRED
    return read(text, was_cut)
