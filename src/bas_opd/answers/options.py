"""The options of a question, found in a text by their letters or by their words."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

from bas_opd.answers.cleaning import clean, lowered, plain
from bas_opd.answers.frames import Frame, distinct
from bas_opd.answers.kinds import KIND_OF, names_quality
from bas_opd.answers.language import NEGATION
from bas_opd.answers.numbers import Number, numbers
from bas_opd.answers.units import unit_of

_ARTICLE = re.compile(r"^(?:an?|the) (?!(?:is|was|has|and|or)\b)(?=\S)")
_EDGES = " \n.,;:!?\"'()[]{}*"
_FORMULA = re.compile(r"[√π^\\]")
_FORMULA_MARKS = tuple("√π^²³")
_NO_THING = re.compile(r"\bthere (?:is|are)(?=(?: not any| no)\b)|^(?=none\b)")
_LOOSE = re.compile(r"\b(?:at least|at most|up to|over|under|nearly|almost) $")
_BESIDE = re.compile(
    r"\W{1,3}(?:(?:and|or|nor|not|maybe|perhaps|possibly|rather than|instead of|the)\W{1,2}){0,4}"
)
_OPEN = re.compile(r"\b(?:or|might|could|may|maybe|perhaps|possibly|if|whether)\b|\?")
_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")
_SMALL = "a an the is are was were be being been his her their its my your this that"
_SMALL_WORDS = frozenset(_SMALL.split())
_HAND = re.compile(r"\b(left|right)[- ]hand(?= side\b)", re.I)
_FIRST_BEYOND_WORDS = 0x2E80  # scripts from here on put no spaces between words


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """Where a text names an option."""

    start: int
    end: int
    key: str


def normal(text: str) -> str:
    """Return a phrase in lower case, without outer punctuation and leading article."""
    low = lowered(plain(clean(text) or "")).replace("\n", " ").strip(_EDGES)
    return _ARTICLE.sub("", _HAND.sub(r"\1", low))


def is_bounded(text: str, start: int, end: int) -> bool:
    """Return whether a span of text neither begins nor ends inside a word."""
    follows = text[end : end + 2].strip()[:1]
    if text[end - 1].isdigit() and (follows in _FORMULA_MARKS or text[start - 1 : start] == "√"):
        return False
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
        self._all = {key: normal(text) for key, text in options.items()}
        self.texts = distinct(self._all)
        self._longest = 40 + 2 * max(map(len, self._all.values()), default=0)
        amounts = {key: _amount(text) for key, text in self._all.items()}
        frames = {amount[1:] for amount in amounts.values() if amount}
        self._unit = next(iter(frames))[1] if len(frames) == 1 else ""
        counts = Counter(amount[0] for amount in amounts.values() if amount)
        self.values: dict[Fraction, str] = {
            amount[0]: key
            for key, amount in amounts.items()
            if amount and len(frames) == 1 and counts[amount[0]] == 1
        }
        self.is_numeric = len(self.values) == len(options) > 1

    @property
    def is_lettered(self) -> bool:
        """Whether the text of every option is its own letter."""
        return all(text == key.strip().lower() for key, text in self._all.items())

    @cached_property
    def _worded(self) -> dict[str, str]:
        """The texts but for letters, which are read as labels: "a" is an article."""
        return {key: text for key, text in self.texts.items() if len(text) > 1 or text.isdigit()}

    def plain(self, text: str) -> str:
        """Return a text that calls "Point (A)" and "left-hand side" by their plain names."""
        text = _HAND.sub(r"\1", text)
        nouns = {value.rpartition(" ")[0] for value in self._all.values()}
        noun = nouns.pop() if len(nouns) == 1 else ""
        is_lettered = noun and all(
            value == f"{noun} {key.strip().lower()}" for key, value in self._all.items()
        )
        if not is_lettered:
            return text
        return re.sub(rf"\b({re.escape(noun)}) [(\[]([a-z])[)\]]", r"\1 \2", text, flags=re.I)

    @cached_property
    def _frame(self) -> Frame:
        return Frame.around(self._all)

    def exact(self, phrase: str) -> str | None:
        """Return the option whose text the phrase is."""
        if len(phrase) > self._longest:
            return None
        low = normal(phrase)
        for key, text in self.texts.items():
            if text == low or (
                _FORMULA.search(low) and text.replace(" ", "") == low.replace(" ", "")
            ):
                return key
        for key, text in self._frame.cores.items():
            if text == low:
                return key
        amount = _amount(low)
        is_bare = amount is not None and amount[2] in ("", self._unit)
        return self.values.get(amount[0]) if amount and is_bare else None

    def is_ambiguous(self, letter: str) -> bool:
        """Return whether a letter names one option and is the text of another."""
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
        whole = _found(low, self._worded)
        cores = _found(low, self._frame.cores) if self._frame.cores else []
        if not cores:
            return whole
        found = sorted(
            [*whole, *(each for each in cores if not _overlaps(each, whole))],
            key=lambda each: each.start,
        )
        spans = {(each.start, each.end) for each in whole}
        held = [
            (each.start, each.end) in spans
            or (not whole and self._frame.holds(low, each.start, each.end))
            for each in found
        ]
        for place, (before, after) in enumerate(pairwise(found)):
            # "the second or the third": what holds for one holds for both.
            if _BESIDE.fullmatch(low, before.end, after.start):
                held[place] = held[place + 1] = held[place] or held[place + 1]
        return [each for each, holds in zip(found, held, strict=True) if holds]

    def rivals(self, low: str, key: str) -> list[tuple[int, int]]:
        """Find words for the colour, side or material of the other options ("wooden")."""
        kinds = {KIND_OF[text] for text in self.texts.values() if names_quality(text)}
        kinds = {kind for kind in kinds if kind[0] != KIND_OF["man"][0]}  # "a girl among men"
        kinds.discard(KIND_OF.get(self.texts.get(key, ""), (-1, -1)))
        words = _WORD.finditer(low) if kinds else ()
        return [word.span() for word in words if KIND_OF.get(word[0]) in kinds]

    def told(self, low: str) -> str | None:
        """Return the one option that a sentence states in other words ("is riding a bike")."""
        if _OPEN.search(low) or NEGATION.search(low):
            return None
        said = f" {_gist(low)} "
        gists = {key: _gist(text) for key, text in self.texts.items()}
        found = [key for key, gist in gists.items() if gist.count(" ") > 1 and f" {gist} " in said]
        return found[0] if len(found) == 1 else None

    def _amounts(self, low: str) -> list[Mention]:
        found = [
            Mention(start=each.start, end=each.end, key=self._owner(low, each))
            for each in numbers(low)
            if not each.is_ordinal
        ]
        empty = None if found else _NO_THING.search(low)
        if empty and Fraction(0) in self.values:
            return [Mention(start=empty.end(), end=empty.end() + 1, key=self.values[Fraction(0)])]
        return found

    def _owner(self, low: str, amount: Number) -> str:
        """Return the option of an amount; a bound, or an amount in another measure, is none's."""
        ours, due = unit_of(amount.unit), unit_of(self._unit)
        is_other = ours is not None and due is not None and ours != due
        is_bound = _LOOSE.search(low, max(0, amount.start - 20), amount.start)
        if is_other or is_bound or amount.is_range:
            return ""
        return self.values.get(amount.value, "")


def _overlaps(core: Mention, whole: list[Mention]) -> bool:
    """Return whether a core is part of the whole text of an option."""
    place = bisect_right(whole, core.start, key=lambda each: each.start) - 1
    return place >= 0 and core.start < whole[place].end


def _gist(low: str) -> str:
    return " ".join(word for word in _WORD.findall(low) if word not in _SMALL_WORDS)


def _amount(text: str) -> tuple[Fraction, str, str] | None:
    """Read a text that is a number, with a few words before and after it."""
    found = numbers(text)
    if len(found) != 1 or found[0].start > 1 or found[0].is_range or found[0].is_ordinal:
        return None
    before, after = text[: found[0].start].strip(), text[found[0].end :].strip(" -")
    return None if " " in after else (found[0].value, before, after)


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
