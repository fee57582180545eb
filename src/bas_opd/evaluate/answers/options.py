"""The options of a question, found in a text by their letters or by their words."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from bas_opd.evaluate.answers.cleaning import clean, lowered, plain
from bas_opd.evaluate.answers.language import CLAUSE_END, NEGATION
from bas_opd.evaluate.answers.numbers import numbers

_ARTICLE = re.compile(r"^(?:an?|the) (?=\S)")
_EDGES = " \n.,;:!?\"'()[]{}*"
_ENDS = re.compile(r"(?: (?:side|colou?r|one))?\W{0,3}$")
_NO_THING = re.compile(r"\bthere (?:is|are)(?=(?: not any| no)\b)|^(?=none\b)")
_ASIDE = {"while", "whereas", "although", "though"}
_REACH = 160  # no word turns another that is farther away
_FIRST_BEYOND_WORDS = 0x2E80  # scripts from here on put no spaces between words
_DENIED_AFTER = re.compile(
    r"\b(?:is|are|was|were|do|does|did|can|could|would|has|have|be|seems?"
    r"|looks?)(?: \w{3,9}ly)?(?: not\b|n't\b)"
    r"|\bcannot\b|\b(?:incorrect|wrong|false|ruled out|eliminated|excluded|unlikely"
    r"|not (?:correct|right))\b"
    r"|不对|不正确|错",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """Where a text names an option."""

    start: int
    end: int
    key: str


def normal(text: str) -> str:
    """Give the words of a phrase alone: no case, no outer punctuation, no leading article."""
    low = lowered(plain(clean(text) or "")).replace("\n", " ").strip(_EDGES)
    return _ARTICLE.sub("", low)


def is_bounded(text: str, start: int, end: int) -> bool:
    """Say whether a stretch of text neither begins nor ends inside a word."""
    return not (
        (_is_letter(text[start]) and start > 0 and _continues(text, start - 1, -1))
        or (_is_letter(text[end - 1]) and end < len(text) and _continues(text, end, 1))
    )


def _is_letter(char: str) -> bool:
    return char.isalnum() and ord(char) < _FIRST_BEYOND_WORDS


def _continues(text: str, place: int, step: int) -> bool:
    if text[place] in "-'./,":
        place += step
        # A point or a comma joins digits only, as in 3.5 and 1,000.
        joined = str.isdigit if text[place - step] in "./," else _is_letter
        return 0 <= place < len(text) and joined(text[place])
    return _is_letter(text[place]) or text[place] == "_"


class Ballot:
    """The options of one question."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.keys = {key.strip().upper(): key for key in options}
        texts = {key: normal(text) for key, text in options.items()}
        self.texts = _distinct(texts)
        self._longest = 40 + 2 * max(map(len, texts.values()), default=0)
        self._cores = _distinct(_cores(texts))
        shared = (
            set.intersection(*(set(text.split()) for text in texts.values())) if texts else set()
        )
        self._frame = {word for word in shared if len(word) > 2} - {
            "the",
            "and",
            "are",
            "was",
            "for",
        }
        values = {key: _whole_number(text) for key, text in texts.items()}
        self.values: dict[Fraction, str] = {
            value: key for key, value in values.items() if value is not None
        }
        self.is_numeric = len(self.values) == len(options) > 1

    def exact(self, phrase: str) -> str | None:
        """Give the option whose text the phrase is."""
        if len(phrase) > self._longest:
            return None
        low = normal(phrase)
        for texts in (self.texts, self._cores):
            for key, text in texts.items():
                if text == low:
                    return key
        value = _whole_number(low)
        return self.values.get(value) if value is not None else None

    def is_ambiguous(self, letter: str) -> bool:
        """Say whether a letter names one option and is the text of another."""
        owner, named = self.exact(letter), self.keys.get(letter.upper())
        return named is not None and owner not in (None, named)

    def text_at(self, low: str, start: int) -> Mention | None:
        """Find the longest option text that begins at a place of a text in lower case."""
        article = _ARTICLE.match(low[start : start + 5])
        places = (start, start + article.end()) if article else (start,)
        best: Mention | None = None
        for place in places:
            for key, text in self.texts.items():
                end = place + len(text)
                is_here = low.startswith(text, place) and is_bounded(low, place, end)
                if is_here and (best is None or end > best.end):
                    best = Mention(start=start, end=end, key=key)
        return best

    def mentions(self, low: str) -> list[Mention]:
        """Find option texts in a text in lower case; of those that overlap, the longest."""
        if self.is_numeric:
            return self._amounts(low)
        return _found(low, self.texts) or [
            each for each in _found(low, self._cores) if self._is_framed(low, each)
        ]

    def _amounts(self, low: str) -> list[Mention]:
        found = [
            Mention(start=each.start, end=each.end, key=self.values.get(each.value, ""))
            for each in numbers(low)
            if not each.is_ordinal
        ]
        empty = None if found else _NO_THING.search(low)
        if empty and Fraction(0) in self.values:
            return [Mention(start=empty.end(), end=empty.end() + 1, key=self.values[Fraction(0)])]
        return found

    def _is_framed(self, low: str, core: Mention) -> bool:
        """Say whether a core ends its text, or stands there with words that all options share."""
        rest = low[core.end :]
        words = set(low.replace(".", " ").split())
        return _ENDS.match(rest) is not None or bool(self._frame & words)


def _distinct(texts: Mapping[str, str]) -> dict[str, str]:
    counts = Counter(texts.values())
    return {key: text for key, text in texts.items() if text and counts[text] == 1}


def _cores(texts: Mapping[str, str]) -> dict[str, str]:
    """Give what tells options apart that share their first or last words ("on the left of it")."""
    words = [text.split() for text in texts.values()]
    if len(words) < 2:
        return {}
    shared = min(map(len, words))
    head = next((n for n in range(shared) if len({each[n] for each in words}) > 1), shared)
    tail = next((n for n in range(shared) if len({each[-1 - n] for each in words}) > 1), shared)
    if head + tail == 0 or any(len(each) <= head + tail for each in words):
        return {}
    return {
        key: " ".join(each[head : len(each) - tail]) for key, each in zip(texts, words, strict=True)
    }


def _whole_number(text: str) -> Fraction | None:
    found = numbers(text)
    is_whole = len(found) == 1 and found[0].start == 0 and found[0].end == len(text)
    return found[0].value if is_whole and not found[0].is_range else None


def _found(low: str, texts: Mapping[str, str]) -> list[Mention]:
    found = []
    for key, text in texts.items():
        start = low.find(text)
        while start >= 0:
            end = start + len(text)
            if is_bounded(low, start, end):
                found.append(Mention(start=start, end=end, key=key))
            start = low.find(text, end)
    found.sort(key=lambda each: (each.start, -each.end))
    kept: list[Mention] = []
    for each in found:
        if kept and each.start < kept[-1].end:
            if each.end - each.start > kept[-1].end - kept[-1].start:
                kept[-1] = each
        else:
            kept.append(each)
    return kept


class Clauses:
    """The clauses of a text, and which of its words they deny."""

    def __init__(self, text: str) -> None:
        self._text = text
        ends = list(CLAUSE_END.finditer(text))
        self._starts = [0, *(end.end() for end in ends)]
        self._ends = [*(end.start() for end in ends), len(text)]
        self._is_aside = [False, *(end[0] in _ASIDE for end in ends)]

    def around(self, start: int, end: int) -> tuple[str, str]:
        """Give what the clause of a stretch says before it and after it."""
        first = bisect_right(self._starts, start) - 1
        last = bisect_right(self._starts, max(start, end - 1)) - 1
        head = max(self._starts[first], start - _REACH)
        return self._text[head:start], self._text[end : min(self._ends[last], end + _REACH)]

    def deny(self, start: int, end: int) -> bool:
        """Say whether its clause denies a stretch ("not A") or only grants it ("while A")."""
        if self._is_aside[bisect_right(self._starts, start) - 1]:
            return True
        before, after = self.around(start, end)
        return bool(NEGATION.search(before) or _DENIED_AFTER.search(after))
