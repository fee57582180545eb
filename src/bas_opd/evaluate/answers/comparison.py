"""Whether a phrase and a reference say the same: yes, no, or not for words alone to tell."""

from __future__ import annotations

import re
from fractions import Fraction

from bas_opd.evaluate.answers.cleaning import lowered
from bas_opd.evaluate.answers.dates import moment
from bas_opd.evaluate.answers.kinds import KIND_OF
from bas_opd.evaluate.answers.language import NEGATION
from bas_opd.evaluate.answers.numbers import Number, is_sum, numbers
from bas_opd.evaluate.answers.options import is_bounded, normal
from bas_opd.evaluate.answers.units import unit_of

_VERB = re.compile(
    r"\b(?:is|are|was|were|be|says|say|reads|read|shows|displays|spells|called|named|labeled"
    r"|labelled|equals|(?:made|built)(?: out)? (?:of|from)|looks like|appears|seems)\b:? |'s "
    r"|\bis:\n?"
    r"| = |(?:是|为|写着)"
)
_SPELLING = re.compile(r"\bgrey(?=\b|ish)|\b(colo|flavo|harbo|neighbo)ur|\b(cent|met|theat)re\b")
_DENIES = re.compile(
    r"(?:[\w-]{1,15}(?: [\w-]{1,15}){0,3}(?:(?:'s| is| are| was) not| (?:is|are|was)n't)|not)"
    r" (?!only\b|just\b)"
)
_PART = re.compile(r",? (?:and|&) |, ?")
_ARTICLE = re.compile(r"\b(?:an?|the) ")
_WORD = re.compile(r"[^\W_]+(?:['.-][^\W_]+)*")
_QUOTED = re.compile(r"(?<!\w)([\"'])([^\"\n]{1,80}?)\1(?!\w)")
_LOOSE = re.compile(
    r"\b(?:or|at least|at most|more than|less than|fewer than|over|under|above|below|up to"
    r"|nearly|almost|between|either|if"
    r"|whether|might|could|may|maybe|perhaps|possibly|both|except|minus|plus|times|and)\b|[~<>±≈+]"
)
_FRAME = (
    "it is are was were there the a an of in on total number about approximately around roughly"
    " exactly only just this that there's it's image picture photo see i can count visible shown"
    " he she they we have has be color colour answer so which here appears to looks like seems"
    " probably clearly"
)
_FRAME_WORDS = frozenset(_FRAME.split())
_BEFORE = (
    "is are was were be it's that's he's she's there's in on to at from with has his her its their"
    " wearing holding carrying driving riding looks appears colour color probably likely clearly"
    " definitely entirely completely all actually really indeed painted"
)
_BEFORE_A_QUALITY = frozenset(_BEFORE.split())
_LONGEST_DESCRIPTION = 12
_HAN_FRAME = re.compile(r"^[^,.;\d]{0,12}[有共是](?:[\d一二两三四五六七八九十])")
_NOTHING = re.compile(r"(?:there (?:is|are) )?(?:no(?! one|\.)|none|zero|nothing)\b")
_JOINT = re.compile(r"(?<=[^\W\d_])-(?=[^\W\d_])")
_MARKS = re.compile(r"[\",;!?]{1,3}(?=\s|$)|(?<=\s)[\"']|[\"'](?=\s|$)")
_CODE_MARKS = re.compile(r"[.:/-]")
_DEGREES = {"celsius", "fahrenheit", "angle"}
_SCALES = {Fraction(10) ** power for power in (-3, -2, 2, 3)}
"""Ratios by which two amounts differ where one of them may be in another unit, or in percent."""
_RANGE = re.compile(r"(\d) ?(?:-|\u2013|\u2014|to|~) ?(?=\d)")
_CODE = re.compile(r"(?=[\w.:/-]{0,40}\d)[\w.:/-]{2,40}")


def compare(phrase: str, reference: str) -> bool | None:
    """Compare a phrase with the reference; None where a judge must."""
    due = _flat(reference)
    found = numbers(lowered(phrase)) if numbers(due) else []
    if is_sum(lowered(phrase), found):
        phrase = phrase[found[-1].start :]
    said = _flat(phrase)
    if not said:
        return None
    if said == due:
        return True
    denial = _DENIES.match(said)
    if denial and said[denial.end() :] == due:
        return False
    if " and " in due and _parts(said) == _parts(due):
        return True
    if due in (f"not {said}", f"no {said}") or _is_loose(said, due):
        return None
    for ask in (_by_moment, _by_number, _by_kind, _by_code):
        # "the one" must keep its article, or it would count.
        verdict = ask(lowered(phrase).strip(" .\n") if ask is _by_number else said, due)
        if verdict is not None:
            return verdict
    return True if _ends_with(said, due) or _quotes(phrase, due) else None


def is_same(phrase: str, reference: str) -> bool:
    """Say whether a phrase is the reference, word for word."""
    return _flat(phrase) == _flat(reference)


def is_named(text: str, reference: str) -> bool:
    """Say whether a text names the reference, in whatever role."""
    low, due = lowered(text), normal(reference)
    start = low.find(due)
    return start >= 0 and is_bounded(low, start, start + len(due))


def _flat(phrase: str) -> str:
    """Give a phrase as words in lower case, articles and hyphens between letters left out."""
    low = _RANGE.sub(r"\1-", _ARTICLE.sub("", normal(phrase)))
    low = _SPELLING.sub(_american, low)
    return _MARKS.sub("", _JOINT.sub(" ", low)).strip(" .:'")


def _american(word: re.Match[str]) -> str:
    return f"{word[1]}r" if word[1] else f"{word[2]}er" if word[2] else "gray"


def _parts(phrase: str) -> frozenset[str]:
    """Give the members of a list, in whatever order they are named."""
    return frozenset(_PART.split(phrase))


def _is_loose(said: str, due: str) -> bool:
    """Say whether a phrase denies, doubts or bounds what it names, where the reference does not."""
    return bool(
        (NEGATION.search(said) and not NEGATION.search(due) and not _counts_nothing(said))
        or (_LOOSE.search(_without_numbers(said)) and not _LOOSE.search(_without_numbers(due)))
    )


def _without_numbers(said: str) -> str:
    for each in reversed(numbers(said)):
        said = f"{said[: each.start]}#{said[each.end :]}"
    return said


def _counts_nothing(said: str) -> bool:
    return _NOTHING.match(said) is not None


def _by_moment(said: str, due: str) -> bool | None:
    """Compare dates and times of day."""
    there, here = moment(due), moment(said)
    if there is None or here is None:
        return None
    pairs = list(zip(here, there, strict=True))
    if any(a != b for a, b in pairs if a is not None and b is not None):
        return False
    return True if all(a == b for a, b in pairs if b is not None) else None


def _by_number(said: str, due: str) -> bool | None:
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
    if not given and _counts_nothing(said):
        return goal.value == 0
    if len({(each.value, each.is_ordinal) for each in given}) != 1 or given[0].is_range:
        return None
    return _same_amount(given[0], goal, said, due)


def _same_amount(here: Number, goal: Number, said: str, due: str) -> bool | None:
    if here.is_ordinal != goal.is_ordinal or (here.unit in ("x", "k") and not goal.unit):
        return None
    ours, theirs = unit_of(here.unit), unit_of(goal.unit)
    left, right = here.value, goal.value
    if ours and theirs:
        if ours[0] != theirs[0]:
            return None if {ours[0], theirs[0]} <= _DEGREES else False
        left, right = left * ours[1], right * theirs[1]
    elif left != right:
        is_scaled = right != 0 and left / right in _SCALES
        return None if is_scaled or _is_near(left, right) else False
    elif theirs or (ours and ours[0] == "part") or (goal.unit and here.unit not in ("", goal.unit)):
        return None
    if left != right:
        return None if _is_near(left, right) else False
    return True if _is_about(here, goal, said, due) else None


def _is_near(left: Fraction, right: Fraction) -> bool:
    """Say whether two values may be one, rounded."""
    return left.denominator + right.denominator > 2 and abs(left - right) * 20 <= abs(right)


def _is_about(here: Number, goal: Number, said: str, due: str) -> bool:
    """Say whether a phrase gives a number as its answer, and not in passing."""
    if here.start == 0 or here.unit == goal.unit != "":
        return True
    before = _WORD.findall(said[: here.start])
    is_framed = all(word in _FRAME_WORDS for word in before[-3:]) or _HAN_FRAME.search(said)
    return bool(is_framed) or said.endswith(due)


def _by_kind(said: str, due: str) -> bool | None:
    """Compare words that exclude one another; another of a kind beside it leaves it open."""
    goal = KIND_OF.get(due)
    if goal is None:
        return None
    words = _WORD.findall(said)
    members = {KIND_OF[word] for word in words if word in KIND_OF and KIND_OF[word][0] == goal[0]}
    if len(members) != 1:
        return None
    if members != {goal}:
        return False
    is_colour_or_side = goal[0] <= 1
    if due not in words or not is_colour_or_side or len(words) > _LONGEST_DESCRIPTION:
        return None
    place = words.index(due)
    return True if place == 0 or words[place - 1] in _BEFORE_A_QUALITY else None


def _by_code(said: str, due: str) -> bool | None:
    """Compare single tokens with digits in them: plates, times, codes."""
    if not numbers(due) and _CODE.fullmatch(due) and _CODE.fullmatch(said):
        return None if _CODE_MARKS.sub("", said) == _CODE_MARKS.sub("", due) else False
    return None


def _ends_with(said: str, due: str) -> bool:
    """Say whether a sentence says that something is the reference, and ends there."""
    said = said.removesuffix("的") if not due.endswith("的") else said
    start = len(said) - len(due)
    return said.endswith(due) and any(verb.end() == start for verb in _VERB.finditer(said))


def _quotes(phrase: str, due: str) -> bool:
    """Say whether the only words that a sentence quotes are the reference."""
    quoted = {_flat(match[2]) for match in _QUOTED.finditer(lowered(phrase))}
    return quoted == {due}
