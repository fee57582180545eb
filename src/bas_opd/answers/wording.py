"""Which option an output chooses by its words alone, where no letter is stated."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping

from bas_opd.answers import cues
from bas_opd.answers.answer import DEFERRED, NONE, Answer, answered
from bas_opd.answers.clauses import Clauses
from bas_opd.answers.cleaning import lowered
from bas_opd.answers.kinds import KIND_OF, names_quality
from bas_opd.answers.labels import Label, is_denied_with, is_name, labels
from bas_opd.answers.language import (
    NO_OPTION,
    after_refusal,
    is_cut,
    may_be_cut,
    refuses,
    sentences,
)
from bas_opd.answers.numbers import is_sum, numbers
from bas_opd.answers.options import Ballot, Mention
from bas_opd.answers.yes_no import yes_no

_SEVERAL = re.compile(
    r"\b(?:none|neither)(?: one)? of (?:the|these|those|them)\b"
    r"|\ball of (?:the (?:above|options)|these)\b"
    r"|\bboth (?:of|are (?:correct|true)|options|answers|choices)\b",
    re.I,
)
_CAPITAL = re.compile(r"(?<![\w'])[A-HJ-Z](?![\w'])")
_BESIDE_AFTER = re.compile(r"(?:,? (?:and|or) |/)(\w{3,12})")
_BESIDE_BEFORE = re.compile(r"(\w{3,12})(?:,? (?:and|or) |/)$")
_A = re.compile(r"\b(?:is|it's|are) an? $")
_PAIR = re.compile(r"\b(?:the|an?) [a-z]{3,15} and $|\bor (?:an? |the )?$")
_OR_ELSE = re.compile(
    r"[ ,(\u2013\u2014-]{1,3}"
    r"(?:or\b|(?:maybe|perhaps|possibly)\b(?! an? )|(?:maybe|perhaps|possibly) an? (\w{3,12}))"
)
_COMPOUND_AFTER = re.compile(r" (?!side\b|colou?r\b|one\b|here\b|there\b)[a-z]{3,15}\W{0,2}$")
_CONCLUDES = re.compile(
    r"\W{0,3}(?:therefore|thus|hence|so|overall|based on|given|comparing|considering"
    r"|in (?:conclusion|summary))\b"
)
_UNREAL = re.compile(
    r"\b(?:if|whether|suppos(?:e|ing)|assuming|unless|initially|at first|first thought|seemed"
    r"|tempt(?:ing|ed)|(?:you|one|some|many|people) (?:might|may|could|would|often))\b"
    r"|^\W{0,2}had (?:it|the|this|that|they|you)\b"
)
"""Words before the text of an option that is only imagined; "had parked his blue car" is seen."""
_CONTRASTS = re.compile(
    r"\b(?:less|least|in contrast|on the other hand|differs|including|might|could"
    r"|may|possibly|perhaps|maybe|either)\b"
)
_PREFERS = re.compile(r"\b(?:most|more|(?<!second )best|better|closer|closest|likely)\b")
_ARTICLE = re.compile(r"(?:an?|the) \w{1,20} ")
_QUALITY = re.compile(r"(?:ed|en|y|ing|ish|ous|al|ic|left|right|front)$")
_WORDY = re.compile(r"[\w+#-]")
_TOTAL_BEFORE = re.compile(
    r"\b(?:so|therefore|thus|hence|total|altogether|makes|making|sum)\b[^.\d]{0,30}$"
)
_TOTAL_AFTER = re.compile(r"(?: [a-z]{2,15}){0,2} (?:in total|in all|altogether|total)\b")
_PREDICATE = re.compile(
    r"^(?: (?:side|colou?r|one|part|half|direction|in colou?r))?"
    r"(?: (?:in|of) (?:the|this) (?:image|picture|photo|scene))?\W{0,3}$"
)
_NEARBY = re.compile(
    r"\b(?:on|next to|beside|behind|under|near|above|below|against|in front of) (?:an?|the|his|her"
    r"|its|their|some|two|three|\d) (?:\w{1,20} )?$"
)
_REMARK = re.compile(r", (?:not \w{1,20}|i (?:think|believe|guess))\W{0,2}$")
_WEIGHS = re.compile(
    r"\b(?:look(?:ing)? at|compar\w{1,4}|consider\w{0,4}|examin\w{1,4}|check\w{0,4}"
    r"|evaluat\w{1,4}|analy[sz]\w{1,4}|discuss\w{0,4}|(?:start|begin)\w{0,5} with|verify\w{0,3})"
    r" (?:(?:the|option|choice|with|answer|letter) ){0,3}[(\[]?$"
)
_RELATION = re.compile(r" (?:of|to|the|an?|it|him|her|them|his|its|their)\b")
_QUESTION = re.compile(r"^.{0,2000}\bthe question (?:is about|asks|refers to|concerns)\b", re.S)
_ASIDE = re.compile(
    r"\bthe (?:options|choices) (?:are|include) [^.\n]{1,200}\. "
    r"|\b(?:between|among|comparing)(?: the)?(?: two)?:? [^.,;\n]{1,80} and [^.,;\n]{1,60},"
    r"|(?:^|\b(?:that's|that is|you're|you are) )right,(?= [\w']{1,20} \w{1,20} \w)"
    r"|\b(?:(?:that's|that is|you're|you are) right(?=[.!]|$)|all right,)"
    r"|\bright (?=behind|in front|next to|beside|above|below|under|on top|here|there|now)",
)
"""Words that contrast options, or that only sound like one."""


def by_words(text: str, ballot: Ballot, was_cut: bool | None) -> Answer:
    """Read an output that gives the words of one option and of no other."""
    if _yes_and_no(ballot):
        return _as_option(yes_no(text, was_cut=was_cut), ballot)
    gives_up = {key for key, option in ballot.texts.items() if refuses(option)}
    if refuses(text) and not gives_up:
        text = after_refusal(text)
    if not text or is_cut(text, was_cut):
        return NONE
    if _SEVERAL.search(text) or cues.SUPPOSITION.search(lowered(text)):
        return DEFERRED
    text, low = _without_asides(text)
    if NO_OPTION.search(low):
        return DEFERRED
    clauses = Clauses(low)
    spoken = ballot.mentions(low)

    def is_spoken(start: int, end: int) -> bool:
        before = bisect_left(spoken, end, key=lambda each: each.start)
        return before > 0 and start < spoken[before - 1].end

    every = [label for label in labels(text, low, ballot) if not is_spoken(label.start, label.end)]

    def is_dropped(start: int, end: int, unreal: re.Pattern[str]) -> bool:
        return clauses.deny(start, end) or bool(unreal.search(clauses.around(start, end)[0]))

    is_denied = [is_dropped(label.start, label.end, cues.UNREAL) for label in every]
    named = [
        label
        for label, denied in zip(every, is_denied, strict=True)
        if not denied and _may_be_named(text, label, ballot)
    ]
    denied = {label.letter for label, denied in zip(every, is_denied, strict=True) if denied}
    letters = {ballot.keys[label.letter] for label in named}
    mentions = [
        each
        for each in spoken
        if not is_dropped(each.start, each.end, _UNREAL)
        and not is_denied_with(text, low, each.end, clauses.deny, ballot)
    ]
    if ballot.is_numeric:
        mentions = _total(low, mentions)
    bounds = list(sentences(text))
    keys = {each.key for each in mentions}
    places = {each.start: ballot.keys[each.letter] for each in named}
    places |= {each.start: each.key for each in mentions}
    if refuses(text) and keys - gives_up:
        return DEFERRED
    if any(_is_mixed(low, each) for each in mentions) or _is_unended(text, was_cut, mentions):
        return DEFERRED
    if any(ballot.is_ambiguous(low[each.start : each.end]) for each in mentions):
        return DEFERRED
    if len(keys | letters) != 1 or "" in keys:
        told = None if every or spoken else ballot.told(low)
        told = told or _preferred(low, bounds, places)
        return answered(told) if told else DEFERRED
    key = (keys | letters).pop()
    rivals = [span for span in ballot.rivals(low, key) if not is_spoken(*span)]
    starts = sorted(places)
    if any(_is_beside(span, starts, clauses) for span in rivals):
        return DEFERRED  # "wooden with metal legs"
    is_fragment = len(low.split()) <= 3 and not (letters or ballot.is_numeric)
    after = _REMARK.sub("", low[mentions[-1].end :]) if is_fragment else ""
    is_described = is_fragment and _ARTICLE.match(low) and names_quality(low.split()[1])
    if not (is_described or _PREDICATE.match(after) or _RELATION.match(after)):
        return DEFERRED  # "cotton candy" is no cotton, but "a red car" is red
    is_lone = len(set(_CAPITAL.findall(text)) - denied) == 1
    ends_with_label = is_lone and named and not _WORDY.search(text, named[-1].end)
    if len(bounds) == 1 and (keys or ends_with_label):
        return answered(key)
    is_concluded = any(_concludes(low, each.start, each.end, bounds) for each in mentions)
    is_concluded |= bool(ends_with_label) and named[-1].start >= bounds[-1][0]
    is_concluded |= _preferred(low, bounds, places) == key
    return answered(key) if is_concluded else DEFERRED


def _is_beside(span: tuple[int, int], places: list[int], clauses: Clauses) -> bool:
    """Return whether a clause says another word of an option, and not of a thing nearby."""
    before, after = clauses.around(*span)
    named = bisect_left(places, span[0] - len(before))
    is_together = named < len(places) and places[named] < span[1] + len(after)
    return is_together and not _NEARBY.search(before) and not clauses.deny(*span)


def _is_unended(text: str, was_cut: bool | None, mentions: list[Mention]) -> bool:
    """Return whether a text may have been cut and does not end with the option that it names."""
    return may_be_cut(text, was_cut) and not (mentions and len(text) - mentions[-1].end < 3)


def _preferred(low: str, bounds: list[tuple[int, int]], named: Mapping[int, str]) -> str | None:
    """Return the option that concluding sentences prefer, else the first and the last one."""
    concluded: set[str] = set()
    framed: set[str] = set()
    is_found = False
    for start, end in bounds:
        sentence = low[start:end]
        keys = {key for place, key in named.items() if start <= place < end}
        is_preferred = _PREFERS.search(sentence) and not _CONTRASTS.search(sentence)
        if start and is_preferred and _CONCLUDES.match(sentence):
            concluded |= keys
        elif start == 0 or (is_preferred and start == bounds[-1][0]):
            framed |= keys
            is_found |= bool(is_preferred and keys)
    found = concluded or (framed if is_found else set())
    return found.pop() if len(found) == 1 else None


def _is_of(kind: tuple[int, int], word: str) -> bool:
    """Return whether a word names a thing of the same kind."""
    other = KIND_OF.get(word)
    return other is not None and other[0] == kind[0]


def _is_mixed(low: str, named: Mention) -> bool:
    """Return whether a word is one of two of its kind ("red and black"), or part of a name."""
    said = low[named.start : named.end]
    word = said.rpartition(" ")[2]
    kind = KIND_OF.get(word)
    near = max(0, named.start - 20)
    is_paired = _PAIR.search(low, max(0, named.start - 30), named.start)
    other = _OR_ELSE.match(low, named.end)
    # "a dog, perhaps a Labrador" is a dog.
    if is_paired or (other and (other[1] is None or (kind and _is_of(kind, other[1])))):
        return True
    beside = [_BESIDE_AFTER.match(low, named.end), _BESIDE_BEFORE.search(low, near, named.start)]
    others = [KIND_OF.get(match[1]) for match in beside if match]
    if any(kind and other and other[0] == kind[0] and other != kind for other in others):
        return True
    is_compound = _COMPOUND_AFTER.match(low, named.end) and _A.search(low, near, named.start)
    return bool(is_compound) and not names_quality(word) and not _QUALITY.search(word)


def _without_asides(text: str) -> tuple[str, str]:
    """Blank mentions of options that choose none; return the text as it is and in lower case."""
    asked = _QUESTION.match(lowered(text))
    text = text[asked.end() :] if asked else text
    for aside in _ASIDE.finditer(lowered(text)):
        text = f"{text[: aside.start()]}{' ' * len(aside[0])}{text[aside.end() :]}"
    return text, lowered(text)


def _may_be_named(text: str, label: Label, ballot: Ballot) -> bool:
    """Return whether a letter can mean an option that is not only weighed."""
    is_weighed = _WEIGHS.search(lowered(text[max(0, label.start - 40) : label.start]))
    return not is_weighed and not is_name(text, label, ballot)


def _yes_and_no(ballot: Ballot) -> bool:
    return set(ballot.texts.values()) == {"yes", "no"} and len(ballot.keys) == 2


def _as_option(polarity: Answer, ballot: Ballot) -> Answer:
    for key, text in ballot.texts.items():
        if text == polarity.value:
            return answered(key)
    return polarity


def _total(low: str, mentions: list[Mention]) -> list[Mention]:
    """Keep only the number that is the sum of the others."""
    if not mentions:
        return []
    last = mentions[-1]
    before = low[max(0, last.start - 60) : last.start]
    is_total = (
        _TOTAL_BEFORE.search(before)
        or _TOTAL_AFTER.match(low, last.end)
        or is_sum(low, numbers(low))
    )
    return [last] if is_total else mentions


def _concludes(low: str, start: int, end: int, bounds: list[tuple[int, int]]) -> bool:
    """Return whether words end the first sentence of a text, or stand in its last."""
    first, last = bounds[0], bounds[-1]
    if last[0] <= start:
        return True
    return start < first[1] and _PREDICATE.match(low[end : first[1]]) is not None
