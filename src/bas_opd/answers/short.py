"""Whether an output gives the reference, in the reference's words or in equal ones."""

from __future__ import annotations

import re
from collections import deque
from functools import partial

from bas_opd.answers.amounts import names_another
from bas_opd.answers.answer import DEFERRED, NONE, Answer, answered
from bas_opd.answers.cleaning import clean, lowered, plain
from bas_opd.answers.comparison import compare, is_named, is_same
from bas_opd.answers.language import (
    after_refusal,
    is_cut,
    last_correction,
    may_be_cut,
    refuses,
    sentences,
    without_questions,
)
from bas_opd.answers.numbers import is_sum, numbers
from bas_opd.answers.options import normal
from bas_opd.answers.sealed import Sealed, last_sealed
from bas_opd.answers.turns import read_first_turn
from bas_opd.answers.yes_no import yes_no

_STATED = re.compile(
    r"\b(?:answer|ans|(?:final|correct) (?:value|result|number|count|total))"
    r"(?: (?!is\b)[\w']{1,15}){0,7}?(?: ?[:=]\s?|\n| (?:is|would be|should be"
    r"|must be)(?:: ?|\n| ))"
    r"|答案(?:是|为|:) ?|ответ ?[:\u2014\u2013-] ?|(?:respuesta|resposta|risposta|réponse"
    r"|antwort)(?: (?:es|é|è|est|ist) | ?: ?)",
    re.I,
)
_TRAILER = re.compile(
    r",? (?:rather than|instead of|as opposed to|unlike|because|since|as (?:shown|seen|indicated"
    r"|it|the)|which|based on|according to)\b|\n"
    r"|; |(?:, (?:not|as|and it|so|i (?:think|believe|guess|would say)|probably|likely)\b)"
    r"|\s[-\u2013\u2014]\s(?!\d)",
    re.I,
)
_PLACE = re.compile(
    r" (?:on|in|at|near|next to|behind|under|above|beside) (?:the|this|his|her|its|their)"
    r" [\w-]{1,15}(?: [\w-]{1,15})?\W{0,2}$"
)
_POLARITY = {"yes": "yes", "true": "yes", "no": "no", "false": "no"}
_LONGEST_CLAIM_WORDS = 25
_LAST_LINE_WORDS = 6
_CONCLUDES = re.compile(
    r"\W{0,2}(?:so|therefore|thus|hence|in (?:total|conclusion|summary)|overall|altogether)\b,? ?",
    re.I,
)
_TURNS = re.compile(r"\W{0,2}(?:but|however|yet|although|though)\b", re.I)
_STATES = re.compile(r"\b(?:is|are|was|were|has|have)\b")


def short(output: str, reference: str, *, was_cut: bool | None = None) -> Answer:
    """Read whether an output commits to the reference; deferred if words alone cannot decide.

    `was_cut` says whether the output reached the token limit; None if that is unknown.
    """
    text = clean(output)
    if not text:
        return NONE
    if not normal(reference):
        return DEFERRED
    if normal(reference) in _POLARITY:
        polarity = yes_no(output, was_cut=was_cut)
        is_meant = polarity.value == _POLARITY[normal(reference)]
        return answered(is_meant) if polarity.status == "answered" else polarity
    return read_first_turn(text, partial(_read_turn, reference), was_cut)


def _read_turn(reference: str, text: str, was_cut: bool | None) -> Answer:
    sealed = last_sealed(text, was_cut)
    return _unsealed(sealed, reference) if sealed else _read(plain(text), reference, was_cut)


def _unsealed(sealed: Sealed, reference: str) -> Answer:
    content = plain(sealed.content)
    if not content:
        return NONE
    if not sealed.is_closed or sealed.is_one_of_several or last_correction(sealed.rest):
        return DEFERRED
    return _read(content, reference, was_cut=False)


def _read(text: str, reference: str, was_cut: bool | None) -> Answer:
    if is_same(text, reference):
        return NONE if was_cut else answered(True)
    text = without_questions(text)
    turn = last_correction(text)
    tail = text[turn.end() :].strip(" ,.:;!\n-") if turn else ""
    if turn is not None and (tail or turn.start() > 0):
        return _read(tail, reference, was_cut) if tail else DEFERRED
    cues = deque(_STATED.finditer(text), maxlen=1)
    if cues and text[cues[0].end() :].strip(" .:"):
        claim = _sentence(text[cues[0].end() :])
        is_open = text.endswith(claim) and is_cut(claim, was_cut)
        return NONE if is_open else _judged(claim, reference)
    if refuses(text) and not refuses(reference):
        text = after_refusal(text)
        if not text:
            return NONE
    if is_cut(text, was_cut):
        return NONE
    if may_be_cut(text, was_cut) or not any(char.isalnum() for char in text):
        return DEFERRED
    return _told(text, reference)


def _sentence(text: str) -> str:
    text = text[:2000].lstrip()
    bounds = next(iter(sentences(text)), (0, len(text)))
    return text[slice(*bounds)]


def _judged(claim: str, reference: str) -> Answer:
    """Compare one phrase without its explanation."""
    if refuses(claim) and not refuses(reference):
        return NONE
    trailer = _TRAILER.search(claim)
    for phrase in [claim, *([claim[: trailer.start()]] if trailer else [])]:
        verdict = compare(phrase, reference)
        if verdict is not None:
            return answered(verdict)
    place = _PLACE.search(claim)
    is_met = place is not None and compare(claim[: place.start()], reference) is True
    return answered(True) if is_met else DEFERRED


def _told(text: str, reference: str) -> Answer:
    """Read an output without an announced answer: its only, first or last sentence may be one."""
    bounds = list(sentences(text[:4000]))
    if len(bounds) == 1:
        is_short = len(text.split()) <= _LONGEST_CLAIM_WORDS
        return _judged(text, reference) if is_short else DEFERRED
    if is_sum(lowered(text), numbers(lowered(text))):
        return _judged(text[slice(*bounds[-1])], reference)
    first, last = text[slice(*bounds[0])], text[text.rfind("\n") + 1 :]
    rest = text[bounds[0][1] :]
    opening = _judged(first, reference)
    if "\n" in text and len(last.split()) <= _LAST_LINE_WORDS:
        closing = _judged(last, reference)
        if closing.value is None and _is_fragment(first) and opening.value is not None:
            return opening
        return closing if opening.value in (None, closing.value) else DEFERRED
    closing = text[slice(*bounds[-1])]
    if _CONCLUDES.match(closing):
        concluded = _judged(_CONCLUDES.sub("", closing), reference)
        if concluded.value is not None:
            is_torn = _is_fragment(first) and opening.value not in (None, concluded.value)
            return DEFERRED if is_torn else concluded
    if opening.value is True and (is_named(rest, reference) or not _is_fragment(first)):
        return opening if _agrees(rest, reference) else DEFERRED
    return opening if _is_fragment(first) and opening.value is not None else DEFERRED


def _is_fragment(sentence: str) -> bool:
    return len(sentence.split()) <= 4 and not _STATES.search(lowered(sentence))


def _agrees(rest: str, reference: str) -> bool:
    """Return whether the sentences that follow an answer name nothing that could replace it."""
    said = [rest[start:end] for start, end in sentences(rest[:4000])]
    if said and _TURNS.match(said[0]):
        return False
    return not any(
        names_another(lowered(each), lowered(reference)) or compare(each, reference) is False
        for each in said
    )
