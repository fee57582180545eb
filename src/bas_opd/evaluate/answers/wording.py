"""Which option an output chooses by its words alone, where no letter is stated."""

from __future__ import annotations

import re

from bas_opd.evaluate.answers.answer import DEFERRED, NONE, Answer, answered
from bas_opd.evaluate.answers.cleaning import lowered
from bas_opd.evaluate.answers.labels import labels
from bas_opd.evaluate.answers.language import after_refusal, is_cut, refuses, sentences
from bas_opd.evaluate.answers.options import Ballot, Clauses, Mention
from bas_opd.evaluate.answers.yes_no import yes_no

_NO_OPTION = re.compile(
    r"\b(?:none|neither)(?: one)? of (?:the|these|those|them)|\bno (?:correct|valid|matching"
    r"|suitable) (?:option|answer|choice)"
    r"|\ball of (?:the|these)|\bboth (?:of|are|options|answers|choices|[A-Z]\b)",
    re.I,
)
_SUPPOSITION = re.compile(r"^if\b(?! (?:i|forced)\b)|\b(?:whether|suppose|assuming)\b")
_CAPITAL = re.compile(r"(?<![\w'])[A-HJ-Z](?![\w'])")
_WORDY = re.compile(r"[\w+#-]")
_TOTAL_BEFORE = re.compile(
    r"\b(?:so|therefore|thus|hence|total|altogether|makes|making|sum)\b[^.\d]{0,30}$"
)
_TOTAL_AFTER = re.compile(r"(?: [a-z]{2,15}){0,2} (?:in total|in all|altogether|total)\b")
_PREDICATE = re.compile(r"^(?: (?:side|colou?r|one|part|half|direction|in colou?r))?\W{0,3}$")


def by_words(text: str, ballot: Ballot) -> Answer:
    """Read an output that gives the words of one option and of no other."""
    if _yes_and_no(ballot):
        return _as_option(yes_no(text), ballot)
    if refuses(text) and not any(refuses(option) for option in ballot.texts.values()):
        text = after_refusal(text)
    if not text or is_cut(text):
        return NONE
    low = lowered(text)
    if _NO_OPTION.search(text) or _SUPPOSITION.search(low):
        return DEFERRED
    clauses = Clauses(low)
    every = labels(text, low, ballot)
    is_denied = [clauses.deny(label.start, label.end) for label in every]
    named = [label for label, denied in zip(every, is_denied, strict=True) if not denied]
    denied = {label.letter for label, denied in zip(every, is_denied, strict=True) if denied}
    letters = {ballot.keys[label.letter] for label in named}
    mentions = [each for each in ballot.mentions(low) if not clauses.deny(each.start, each.end)]
    if ballot.is_numeric:
        mentions = _total(low, mentions)
    bounds = list(sentences(text))
    keys = {each.key for each in mentions}
    if len(keys | letters) != 1 or "" in keys:
        return DEFERRED
    key = (keys | letters).pop()
    is_fragment = len(low.split()) <= 3 and not (letters or ballot.is_numeric)
    if is_fragment and not _PREDICATE.match(low[mentions[-1].end :]):
        return DEFERRED  # "cotton candy" is no cotton
    is_lone = len(set(_CAPITAL.findall(text)) - denied) == 1
    ends_with_label = is_lone and named and not _WORDY.search(text, named[-1].end)
    if len(bounds) == 1 and (keys or ends_with_label):
        return answered(key)
    is_concluded = any(_concludes(low, each.start, each.end, bounds) for each in mentions)
    return answered(key) if is_concluded else DEFERRED


def _yes_and_no(ballot: Ballot) -> bool:
    return set(ballot.texts.values()) == {"yes", "no"} and len(ballot.keys) == 2


def _as_option(polarity: Answer, ballot: Ballot) -> Answer:
    for key, text in ballot.texts.items():
        if text == polarity.value:
            return answered(key)
    return polarity


def _total(low: str, mentions: list[Mention]) -> list[Mention]:
    """Keep the number alone that an output adds the others up to."""
    if not mentions:
        return []
    last = mentions[-1]
    before = low[max(0, last.start - 60) : last.start]
    is_total = _TOTAL_BEFORE.search(before) or _TOTAL_AFTER.match(low, last.end)
    return [last] if is_total else mentions


def _concludes(low: str, start: int, end: int, bounds: list[tuple[int, int]]) -> bool:
    """Say whether words end the first sentence of a text, or stand in its last."""
    first, last = bounds[0], bounds[-1]
    if last[0] <= start:
        return True
    return start < first[1] and _PREDICATE.match(low[end : first[1]]) is not None
