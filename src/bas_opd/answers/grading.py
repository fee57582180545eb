"""Whether a response is right, by rule alone: for rewards and for selection.

The parsers are those of evaluation, so that what is rewarded is what is measured.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bas_opd.answers.answer import Answer
from bas_opd.answers.choice import choice
from bas_opd.answers.listed import answer_letter, listed_options
from bas_opd.answers.short import short
from bas_opd.answers.yes_no import yes_no
from bas_opd.types import Grade

Form = Literal["choice", "yes_no", "short", "last_word"]
"""How a response is read: one of the listed options, yes or no, a few words, or its last word."""


def grade(output: str, reference: str) -> Grade:
    """Read a response as evaluation reads a short answer, as a signal for selection.

    It is unread where there is no answer in it, or none that a rule can read.
    """
    answer = short(output, reference)
    if answer.status != "answered":
        return "unread"
    return "right" if answer.value is True else "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerKey:
    """The right answer to a question, and how a response to it is read."""

    form: Form
    reference: str
    options: Mapping[str, str] = field(default_factory=dict)
    """Letter -> text, for a choice."""

    @property
    def meaning(self) -> str:
        """The right answer for a reader: a letter means nothing without its option."""
        option = self.options.get(self.reference)
        return f"({self.reference}) {option}" if option else self.reference

    def grade(self, output: str, *, was_cut: bool | None = None) -> Grade:
        """Read a response; it is unread where the rule leaves it to a judge.

        `was_cut` says whether it reached the token limit; then what is not an answer is wrong.
        """
        if self.form == "last_word":
            return "right" if ends_with(output, self.reference) else "wrong"
        answer = self._read(output, was_cut)
        if answer.status == "answered":
            expected = True if self.form == "short" else self.reference
            return "right" if answer.value == expected else "wrong"
        return "unread" if answer.status == "deferred" and not was_cut else "wrong"

    def _read(self, output: str, was_cut: bool | None) -> Answer:
        if self.form == "choice":
            return choice(output, self.options, was_cut=was_cut)
        if self.form == "yes_no":
            return yes_no(output, was_cut=was_cut)
        return short(output, self.reference, was_cut=was_cut)


def answer_key(question: str, answer: str, *, by_last_word: bool = False) -> AnswerKey | None:
    """Return how responses to a question are graded; None where no rule can grade its answer.

    Options listed in the question make it a choice. A rule can grade an answer if it reads the
    answer itself as right.
    """
    said = answer.strip()
    if not said:
        return None
    key = AnswerKey(form="short", reference=said)
    if by_last_word:
        key = AnswerKey(form="last_word", reference=said)
    elif options := listed_options(question):
        letter = answer_letter(said, options)
        if letter is None:
            return None
        key, said = AnswerKey(form="choice", reference=letter, options=options), letter
    elif (word := said.strip(string.punctuation).casefold()) in ("yes", "no"):
        key = AnswerKey(form="yes_no", reference=word)
    return key if key.grade(said) == "right" else None


def ends_with(output: str, answer: str) -> bool:
    """Return whether the last word of the output is the answer.

    Punctuation around words and the case of letters are ignored: "The plate is Red." ends with
    red. The right word anywhere else does not count.
    """
    words = [word.strip(string.punctuation) for word in output.casefold().split()]
    return next(filter(None, reversed(words)), None) == answer.casefold()
