"""Whether two phrases give the same amount: numbers, their units, and how they are rounded."""

from __future__ import annotations

import re
from fractions import Fraction

from bas_opd.answers.dates import moment
from bas_opd.answers.language import NEGATION
from bas_opd.answers.numbers import Number, numbers
from bas_opd.answers.units import unit_of

_WORD = re.compile(r"[^\W_]+(?:['.-][^\W_]+)*")
_FRAME = (
    "it is are was were there the a an of in on total number about approximately around roughly"
    " exactly only just this that there's it's image picture photo see i can count visible shown"
    " he she they we have has be color colour answer so which here appears to looks like seems"
    " probably clearly usd eur gbp jpy"
)
_LOOSE = re.compile(
    r"\b(?:or|over|under|above|below|up to|nearly|almost|between|either|if|whether|might|could|may"
    r"|maybe|perhaps|possibly|minus|plus|times)\b|[~<>±≈]"
)
_OR = re.compile(r"(?: [a-z]{2,12})? (?:or|to|and|plus|minus|times)\b (?=[a-z]{0,3}\b)|[+~]")
_SERIES = re.compile(r"\d, (?:and |or )?\d")
_AND = re.compile(r"\band $")
_FRAME_WORDS = frozenset(_FRAME.split())
_OF_ANOTHER = re.compile(
    r"(?:\b(?:the|these|those|his|her|its|their|all|both|after|before|since|until|next to|near"
    r"|beside|behind|between|among|under|above|from|for|than|least|most|each|every"
    r"|(?<!total )(?<!number )(?<!sum )of"
    r"|(?:next to|near|beside|behind) number)|[a-z]\(|[)a-z\d] ?[+*/\u00d7·]|[)a-z\d] -) ?$"
)
"""What stands before a number of something else: "the 2 cars", "after 1945", "f(3)"."""
_NAME = re.compile(r"\b(?:for|on|in|at|by|with|of|near|the|this|that|an?) ([a-z]{3,15}) $")
"""What stands before a number that is a name: "for bus 12"."""
_PLACE = re.compile(r"(?:page|figure|step|question|chapter|section|example) $")
"""All that stands before the number of a part of a text: "page 4"."""
_ENDS = re.compile(
    r"(?:[ -]?(?:%|°[cf]?|(?!is\b|are\b|was\b|were\b)[^\W\d_]{1,20}(?:/[a-z]{1,4})?))?"
    r"(?: (?:long|tall|high|wide|deep|thick|left|away|in total))?\W{0,3}$"
)
_HAN_FRAME = re.compile(r"^[^,.;\d]{0,12}[有共是](?:[\d一二两三四五六七八九十])")
_NOTHING = re.compile(r"(?:there (?:is|are) )?(?:no(?! one|\.)|none|zero|nothing)\b")
_FIGURES = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
_DEGREES = {"celsius", "fahrenheit", "angle"}
_UNSETTLED = ({"time", "calendar"}, {"celsius", "fahrenheit"})
"""Dimensions in which different numbers may be the same amount, and equal ones may differ."""
_LIKE_NAMED = ({"length", "speed"}, {"mass", "sterling"})
_LARGE = {"k", "m", "mn", "b", "bn"}
_SCALES = {Fraction(10) ** power for power in (-3, -2, 2, 3)}
"""Ratios by which two amounts differ where one of them may be in another unit, or in percent."""


def by_number(said: str, due: str) -> bool | None:
    """Compare a reference that is a number, with or without its unit."""
    wanted = numbers(due)
    if len(wanted) != 1 or wanted[0].start > 1 or wanted[0].is_range or moment(due):
        return None
    goal = wanted[0]
    tail = due[goal.end :].strip()
    if tail and tail != goal.unit and unit_of(goal.unit) is None:
        return None
    if moment(said):
        return None
    given = numbers(said)
    if counts_nothing(said) and not (given and given[0].value == 0):
        return goal.value == 0 if not given else None
    if _SERIES.search(said) or any(_AND.search(said, 0, each.start) for each in given[1:]):
        return None
    told = [each for each in given if _is_told(each, goal, said)]
    if len({(each.value, each.is_ordinal) for each in told}) != 1 or told[0].is_range:
        return None
    if _is_bounded(told[0], said) and not _is_bounded(goal, due):
        return None
    return _same_amount(told[0], goal)


def _is_bounded(here: Number, said: str) -> bool:
    """Return whether a phrase denies, doubts or bounds its number ("not 3", "3 or 4")."""
    before = said[: here.start]
    return bool(NEGATION.search(before) or _LOOSE.search(before) or _OR.match(said, here.end))


def names_another(said: str, due: str) -> bool:
    """Return whether a phrase has one number, and it is not the reference's."""
    wanted, given = numbers(due), {each.value for each in numbers(said)}
    return len(wanted) == len(given) == 1 and wanted[0].value not in given


def by_figures(said: str, due: str) -> bool | None:
    """Compare names that differ in nothing but their numbers: "Room 12" is not "Room 13"."""
    if not _FIGURES.search(due) or _FIGURES.sub("#", said) != _FIGURES.sub("#", due):
        return None
    ours, theirs = (
        [Fraction(each.replace(",", "")) for each in _FIGURES.findall(text)] for text in (said, due)
    )
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a != b]
    is_open = any(b == 0 or a / b in _SCALES or _is_rounded(a, b) for a, b in pairs)
    return False if pairs and not is_open else None


def counts_nothing(said: str) -> bool:
    """Return whether a phrase says that the amount is zero."""
    return _NOTHING.match(said) is not None


def _same_amount(here: Number, goal: Number) -> bool | None:
    if here.is_ordinal != goal.is_ordinal or (here.unit in ("x", "k") and not goal.unit):
        return None
    if here.is_part or goal.is_part:
        return None
    ours, theirs = unit_of(here.unit), unit_of(goal.unit)
    left, right = here.value, goal.value
    if ours and theirs:
        if ours[0] != theirs[0]:
            dimensions = {ours[0], theirs[0]}
            is_open = dimensions in _UNSETTLED and left != right
            is_sloppy = "angle" in dimensions <= _DEGREES or dimensions in _LIKE_NAMED
            return None if is_open or is_sloppy else False
        left, right = left * ours[1], right * theirs[1]
        if ours != theirs and left != right:
            return None if abs(left - right) * 20 <= abs(right) else False
    elif left != right:
        is_scaled = right != 0 and left / right in _SCALES
        is_large = here.unit in _LARGE or goal.unit in _LARGE
        return None if is_scaled or is_large or _is_rounded(left, right) else False
    elif theirs or (ours and ours[0] == "part") or (goal.unit and here.unit not in ("", goal.unit)):
        return None
    return left == right or (None if _is_rounded(left, right) else False)


def _is_rounded(left: Fraction, right: Fraction) -> bool:
    """Return whether one value is the other, rounded."""
    return any(
        round(exact * 10**places) == rounded * 10**places
        for exact, rounded in ((left, right), (right, left))
        for places in range(4)
    )


def _is_told(here: Number, goal: Number, said: str) -> bool:
    """Return whether a phrase gives a number as its answer, and not in passing."""
    before = said[: here.start]
    if here.unit == goal.unit != "" or not any(char.isalnum() for char in before):
        return True
    if _OF_ANOTHER.search(before):
        return False
    words = _WORD.findall(before)
    is_year = all(1000 <= each.value < 2100 for each in (here, goal))
    is_set = words[-1] in ("in", "on") and not is_year  # "in 3 seconds the light turns green"
    is_framed = all(word in _FRAME_WORDS for word in words[-3:]) and not is_set
    if is_framed or _HAN_FRAME.search(said):
        return words[-1:] != ["number"]
    name = _NAME.search(before)
    is_name = _PLACE.match(before) or (name is not None and name[1] not in _FRAME_WORDS)
    return not is_name and _ENDS.match(said, here.end) is not None
