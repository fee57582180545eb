"""Whether a phrase and a reference mean the same: yes, no, or undecidable from words alone."""

from __future__ import annotations

import re
import unicodedata

from bas_opd.answers.amounts import by_figures, by_number, counts_nothing
from bas_opd.answers.cleaning import lowered
from bas_opd.answers.dates import moment
from bas_opd.answers.kinds import KIND_OF
from bas_opd.answers.language import NEGATION
from bas_opd.answers.numbers import is_sum, numbers
from bas_opd.answers.options import is_bounded, normal

_VERB = re.compile(
    r"\b(?:is|are|was|were|be|says|say|reads|read|shows|displays|spells|called|named|labeled"
    r"|labelled|equals|(?:made|built)(?: out)? (?:of|from)|looks like|appears|seems)\b:? |'s "
    r"|\bis:\n?"
    r"| = |(?:是|为|写着)"
)
_SPELLING = re.compile(r"\bgrey(?=\b|ish)|\b(colo|flavo|harbo|neighbo)ur|\b(cent|met|theat)re\b")
_DENIES = re.compile(
    r"\b(?:(?:is|are|was|were|it's|that's) not|(?:is|are|was|were)n't|not|rather than|instead of"
    r"|neither|nor) $"
)
_CORRECTED = re.compile(
    r"(?:[\w' -]{1,40} )?(?:not|isn't|aren't) (?!only\b|just\b)[\w'-]{1,15}(?: [\w'-]{1,15}){0,2}?"
    r"(?:,|;|\.)? (?:but(?: rather)? |(?=(?:it's|it is|they are|they're) ))"
)
_WHERE = re.compile(r"^(?:in|on|at|inside|from) ")
_PART = re.compile(r",? (?:and|&) |, ?")
_ARTICLE = re.compile(r"\b(?:an?|the) ")
_WORD = re.compile(r"[^\W_]+(?:['.-][^\W_]+)*")
_QUOTED = re.compile(r"(?<!\w)([\"'])([^\"\n]{1,80}?)\1(?!\w)")
_LOOSE = re.compile(
    r"\b(?:or|at least|at most|more than|less than|fewer than|over|under|above|below|up to"
    r"|nearly|almost|between|either|if"
    r"|whether|might|could|may|maybe|perhaps|possibly|both|except|minus|plus|times|and"
    r"|(?:some|many|others|people) (?:might |would )?(?:say|think|believe))\b|[~<>±≈+]"
)
_BEFORE = (
    "is are was were be it's that's he's she's there's in on to at from with has his her its their"
    " wearing holding carrying driving riding looks appears colour color probably likely clearly"
    " definitely entirely completely all actually really indeed painted"
)
_BEFORE_A_QUALITY = frozenset(_BEFORE.split())
_LONGEST_DESCRIPTION = 12
_LONGEST_NAME = 4
_LONGEST_PHRASE = 2000
_JOINT = re.compile(r"(?<=[^\W\d_])-(?!ish\b)(?=[^\W\d_])")
_GAP = re.compile(r"(?<=[^\W_])[ '-](?=[^\W\d_])|(?<=[^\W\d_])[ '-](?=\d)|(?<=\b[a-z])\.")
_ACCENTS = re.compile("[\u0300-\u036f]")
_SPACED = re.compile(r"\d{1,3}(?: \d{3}){1,3}")
_MARKS = re.compile(r"[\",;!?]{1,3}(?=\s|$)|(?<=\s)[\"']|[\"'](?=\s|$)")
_CODE_MARKS = re.compile(r"[.:/-]")
_RANGE = re.compile(r"(\d) ?(?:-|\u2013|\u2014|to|~) ?(?=\d)")
_CODE = re.compile(r"(?=[\w.:/-]{0,40}\d)[\w.:/-]{2,40}")


def compare(phrase: str, reference: str) -> bool | None:
    """Compare a phrase with the reference; None if a judge must decide."""
    if len(phrase) > _LONGEST_PHRASE:
        return None
    due = _flat(reference)
    found = numbers(lowered(phrase)) if numbers(due) else []
    if is_sum(lowered(phrase), found):
        phrase = phrase[found[-1].start :]
    said = _flat(phrase)
    if not said or not due:
        return None
    if said == due or _squeezed(said) == _squeezed(due) or _WHERE.sub("", said) == due:
        return True
    if _is_only_denied(said, due):
        return False
    if " and " in due and _parts(phrase) == _parts(reference):
        return True
    corrected = _CORRECTED.match(said)
    if corrected:
        return compare(said[corrected.end() :], reference)
    if due in (f"not {said}", f"no {said}"):
        return None
    # "the one" must keep its article, or it would count.
    verdict = by_number(lowered(phrase).strip(" .\n"), due)
    if verdict is not None or _is_loose(said, due):
        return verdict
    for ask in (_by_moment, _by_kind, _by_code, by_figures):
        verdict = ask(said, due)
        if verdict is not None:
            return verdict
    is_met = (_ends_with(said, due) and not _has_rival(said, due)) or _quotes(phrase, due)
    return True if is_met else None


def is_same(phrase: str, reference: str) -> bool:
    """Return whether a phrase is the reference, word for word."""
    return _flat(phrase) == _flat(reference)


def is_named(text: str, reference: str) -> bool:
    """Return whether a text mentions the reference in any role."""
    low, due = lowered(text), normal(reference)
    start = low.find(due)
    return start >= 0 and is_bounded(low, start, start + len(due))


def _flat(phrase: str) -> str:
    """Return a phrase as words in lower case, articles and hyphens between letters left out."""
    low = _RANGE.sub(r"\1-", _ARTICLE.sub("", normal(phrase)))
    if not low.isascii():
        # Accents are a matter of the keyboard; other marks belong to their letters.
        low = _ACCENTS.sub("", unicodedata.normalize("NFD", low))
        low = unicodedata.normalize("NFC", low)
    if _SPACED.fullmatch(low):
        low = low.replace(" ", "")
    low = _SPELLING.sub(_american, low)
    return _MARKS.sub("", _JOINT.sub(" ", low)).strip(" .:'")


def _american(word: re.Match[str]) -> str:
    return f"{word[1]}r" if word[1] else f"{word[2]}er" if word[2] else "gray"


def _squeezed(flat: str) -> str:
    """Remove separators between the words of a name, but not between digits."""
    return flat if NEGATION.search(flat) else _GAP.sub("", flat)


def _parts(phrase: str) -> frozenset[str]:
    """Return the members of a list, in whatever order they are named."""
    return frozenset(_PART.split(_ARTICLE.sub("", normal(phrase))))


def _is_only_denied(said: str, due: str) -> bool:
    """Return whether a phrase names the reference only to say that it is not it."""
    places = [at.start() for at in re.finditer(re.escape(due), said)]
    bounded = [at for at in places if is_bounded(said, at, at + len(due))]
    is_whole = all(not said[at + len(due) :].startswith(" ") for at in bounded[-1:])
    return bool(bounded) and is_whole and all(_DENIES.search(said[:at]) for at in bounded)


def _is_loose(said: str, due: str) -> bool:
    """Return whether a phrase denies, doubts or bounds what it names, unlike the reference."""
    return bool(
        (NEGATION.search(said) and not NEGATION.search(due) and not counts_nothing(said))
        or (_LOOSE.search(_without_numbers(said)) and not _LOOSE.search(_without_numbers(due)))
    )


def _without_numbers(said: str) -> str:
    for each in reversed(numbers(said)):
        said = f"{said[: each.start]}#{said[each.end :]}"
    return said


def _by_moment(said: str, due: str) -> bool | None:
    """Compare dates and times of day."""
    there, here = moment(due), moment(said)
    if there is None or here is None:
        return None
    pairs = list(zip(here, there, strict=True))
    if any(a != b for a, b in pairs if a is not None and b is not None):
        return False
    if here[3] == there[3] == 0 and {here[5], there[5]} == {None, "a"}:
        return None  # 0:30 is half past twelve only at night
    return True if all(a == b for a, b in pairs if b is not None) else None


def _by_kind(said: str, due: str) -> bool | None:
    """Compare words that exclude one another; with a second word of the kind, it is undecided."""
    words = _WORD.findall(said)
    goal = KIND_OF.get(due)
    if goal is None:
        return _by_kinds(words, _WORD.findall(due))
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


def _by_kinds(said: list[str], due: list[str]) -> bool | None:
    """Compare short descriptions: what is at the top left is not at the bottom right."""
    if max(len(said), len(due)) > _LONGEST_NAME:
        return None
    ours, theirs = ([KIND_OF[word] for word in words if word in KIND_OF] for words in (said, due))
    for kind, member in theirs:
        of_kind = {each for each in (*ours, *theirs) if each[0] == kind}
        if len(of_kind - {(kind, member)}) == 1 and sum(each[0] == kind for each in theirs) == 1:
            return False if (kind, member) not in ours else None
    return None


def _by_code(said: str, due: str) -> bool | None:
    """Compare single tokens with digits in them: plates, times, codes."""
    if len(said) == len(due) == 1 and said.isascii() and (said + due).isalpha():
        return False
    if not numbers(due) and _CODE.fullmatch(due) and _CODE.fullmatch(said):
        is_same_day = sorted(_CODE_MARKS.split(said)) == sorted(_CODE_MARKS.split(due))
        is_open = _CODE_MARKS.sub("", said) == _CODE_MARKS.sub("", due) or is_same_day
        return None if is_open else False
    return None


def _ends_with(said: str, due: str) -> bool:
    """Return whether a sentence says that something is the reference, and ends there."""
    said = said.removesuffix("的") if not due.endswith("的") else said
    start = len(said) - len(due)
    if said.endswith(due) and any(verb.end() == start for verb in _VERB.finditer(said)):
        return True
    name = _squeezed(due)
    return len(name) > 3 and any(
        _squeezed(said[verb.end() :]) == name for verb in _VERB.finditer(said)
    )


_PREDICATE = re.compile(r"\b(?:is|are|was|were|looks)(?: an?| the)? (\w{2,12})\b")
"""What a part of a sentence says of its subject; "the white van" says nothing of it."""


def _has_rival(said: str, due: str) -> bool:
    """Return whether a sentence names another of the reference's kind ("the bus is blue, ...")."""
    goal = KIND_OF.get(due)
    kinds = (KIND_OF.get(match[1]) for match in _PREDICATE.finditer(said))
    return goal is not None and any(each and each[0] == goal[0] and each != goal for each in kinds)


def _quotes(phrase: str, due: str) -> bool:
    """Return whether the only words that a sentence quotes are the reference."""
    quoted = {_flat(match[2]) for match in _QUOTED.finditer(lowered(phrase))}
    return quoted == {due}
