"""Letters that name an option, as opposed to letters that are words."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from bas_opd.answers.options import Ballot, is_bounded

_LABEL = re.compile(
    r"[(\[] ?([A-Za-z]) ?[)\]]"
    r"|(?<![A-Za-z0-9_\u00c0-\u024f\u00b0&'\u2220\u25b3-])(?<!\w\.)(?<!\w/)([A-Z])"
    r"(?![A-Za-z0-9_\u00c0-\u024f\u00b0+&#]|'[a-z]|-\w|\.[A-Za-z0-9]|/[A-Z]\b)"
    r"|(?<![\w(])([a-z])(?=\))"
    r"|(?<=[Oo]ption )([a-z])(?= (?:is|was)\b|[.:;\n]|$)"
)
_SEPARATOR = re.compile(
    r"[.):,\]]{0,3}(?: ?[\u2013\u2014:=] ?| ?-(?!\d) ?|\s|$)?[\"'(]?"
    r"(?:i\.e\.?,? |namely,? |meaning )?"
)
_INTRODUCES = re.compile(
    r"(?:^|[^\w ]|\b(?:is|are|be|was|it's|that's|options?|choice|answer"
    r"|letter|as|to|with|for|so|and"
    r"|or|nor|by|but|only|leaves|leaving|select|choose|pick|guess|say|therefore|thus|hence|then|just"
    r"|mak(?:es?|ing)|that|both|neither|either|because|since|if|while|not|than"
    r"|remains|means|maybe|perhaps|in|ist|est|es|è|é|lautet|réponse|respuesta|\w{2,12}ly)|'s"
    r"|[\u0370-\u1fff\u2e80-\uffff])[ \"']{0,3}$",
    re.I,
)
"""What may stand before a letter that names an option; a noun makes it a name ("vitamin D")."""
_CITES = re.compile(r"\b(?:says?|reads?|letters?) $")
_EQUALS = re.compile(r" ?=")
_NEXT_WORD = re.compile(r" ([^\W\d_]\w{0,20})")
_VERBS_AND_LINKS = (
    "is isn't was and or because since as with which would wouldn't seems appears for based due"
    " given matches match fits shows describes cannot can't can does doesn't has not but rather"
    " if in here over than may might must could should looks best correctly accurately by i"
    " it the to from on are were do did will holds applies works remains stands says makes instead"
    " corresponds represents indicates states also suits answers"
)
_FOLLOWERS = frozenset(_VERBS_AND_LINKS.split())
_ALSO = re.compile(
    r" ?(?:,? ?\b(?:and/or|and|or|nor|und|oder|et|ou|y|o|и|или)\b|[,/&+;]|和|或者?|与|及|と|や)"
    r"(?: also| maybe| possibly| perhaps)? ?"
    r"(?:(?:option|choice)s? )?"
)
_LINK = re.compile(
    r",? which (?:is|corresponds to|matches|would be|means) (?:the )?(?:option |choice "
    r"|answer )?[(\[]?$"
)
_TEXT_END = re.compile(r"\W{0,2}(?:$|\n|\.\s|,)")
_SINGULAR = re.compile(
    r"[.)\]]? (?:is|was|isn't|does|doesn't|has|shows|cannot|can't|would|seems|appears)\b"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A letter that names an option, or would if it were one."""

    letter: str
    start: int
    end: int
    is_bracketed: bool


def label_at(text: str, low: str, start: int, ballot: Ballot) -> Label | None:
    """Read a label at a place: "(b)", "B", "b)"; an article or a pronoun is none."""
    match = _LABEL.match(text, start)
    if match is None:
        return None
    label = Label(
        letter=(match[1] or match[2] or match[3] or match[4]).upper(),
        start=match.start(),
        end=match.end(),
        is_bracketed=match[2] is None and match[4] is None,
    )
    is_none = _is_word(text, low, label, ballot) or _is_part(low, label, ballot)
    return None if is_none else label


def labels(text: str, low: str, ballot: Ballot) -> list[Label]:
    """Find the labels of a text that are letters of the options."""
    found = (label_at(text, low, match.start(), ballot) for match in _LABEL.finditer(text))
    return [label for label in found if label is not None and label.letter in ballot.keys]


def _is_word(text: str, low: str, label: Label, ballot: Ballot) -> bool:
    if label.is_bracketed:
        return False
    if _EQUALS.match(low, label.end):  # "A = 5" is a variable
        return own_text_end(low, label, ballot) == label.end
    word = _NEXT_WORD.match(low, label.end)
    if word is None:
        return False
    end = own_text_end(low, label, ballot)
    if end > label.end:  # "A red flag" is no label with its text
        return label.letter == "A" and _NEXT_WORD.match(low, end) is not None
    if label.letter == "I" or word[1] in _FOLLOWERS or _ALSO.match(low, label.end):
        return label.letter == "I"
    is_adverb = word[1].endswith("ly")
    return label.letter == "A" or (text[word.start(1)].islower() and not is_adverb)


def _is_part(low: str, label: Label, ballot: Ballot) -> bool:
    """Return whether a letter belongs to the text of another option ("Point B", "B is closer")."""
    if label.is_bracketed:
        return False
    key = ballot.keys.get(label.letter)
    after = ballot.text_at(low, label.start)
    if after is not None and after.key != key and after.end > label.end:
        return True
    return any(
        owner != key
        and len(text) > 1
        and low.endswith(text, 0, label.end)
        and is_bounded(low, label.end - len(text), label.end)
        for owner, text in ballot.texts.items()
    )


def is_name(text: str, label: Label, ballot: Ballot) -> bool:
    """Return whether a letter names a thing: "vitamin D", "angle A", a sign that says "A".

    Where the options are such letters themselves, the thing is the option.
    """
    near = max(0, label.start - 16)
    if ballot.is_lettered:
        return False
    if _CITES.search(text, near, label.start):
        return True
    return not label.is_bracketed and _INTRODUCES.search(text, near, label.start) is None


def own_text_end(low: str, label: Label, ballot: Ballot) -> int:
    """Return where a label ends with the text of its option, if that follows."""
    start = separator_end(low, label)
    named = ballot.text_at(low, start)
    return named.end if named and named.key == ballot.keys.get(label.letter) else label.end


def has_own_text(low: str, label: Label, ballot: Ballot) -> bool:
    """Return whether a label is followed by the text of its option."""
    return own_text_end(low, label, ballot) > label.end


def separator_end(low: str, label: Label) -> int:
    """Return where the text that a label introduces begins."""
    match = _SEPARATOR.match(low, label.end)
    return match.end() if match else label.end


def is_contradicted(low: str, label: Label, ballot: Ballot) -> bool:
    """Return whether a label is followed by the text of another option."""
    if _is_contradicted_before(low, label, ballot):
        return True
    named = ballot.text_at(low, separator_end(low, label))
    if named is None or named.key == ballot.keys.get(label.letter):
        return False
    return _TEXT_END.match(low, named.end) is not None


def _is_contradicted_before(low: str, label: Label, ballot: Ballot) -> bool:
    """Return whether a label is said to be the text of another option ("blue, which is C")."""
    start = max(0, label.start - 200)
    link = _LINK.search(low, max(start, label.start - 40), label.start)
    if link is None:
        return False
    said = low[start : link.start()]
    named = {
        key
        for key, text in ballot.texts.items()
        if said.endswith(text) and is_bounded(said, len(said) - len(text), len(said))
    }
    return bool(named) and ballot.keys.get(label.letter) not in named


def has_company(text: str, low: str, label: Label, ballot: Ballot) -> bool:
    """Return whether a label stands in a list with another ("A and B", "A. red or B. blue")."""
    key, end = ballot.keys.get(label.letter, label.letter), own_text_end(low, label, ballot)
    if end > label.end and joins_another(text, low, end, key, ballot):
        return True
    return _joins_label(text, low, label.end, key, ballot)


def joins_another(text: str, low: str, end: int, key: str, ballot: Ballot) -> bool:
    """Return whether the text of an option is followed by another option ("red or blue")."""
    also = _ALSO.match(low, end)
    named = also and ballot.text_at(low, also.end())
    return bool(named and named.key != key) or _joins_label(text, low, end, key, ballot)


def is_denied_with(
    text: str, low: str, end: int, deny: Callable[[int, int], bool], ballot: Ballot
) -> bool:
    """Return whether an option shares the denial of a label that follows it ("red, B and C")."""
    also = _ALSO.match(low, end)
    other = also and label_at(text, low, also.end(), ballot)
    return bool(other) and deny(other.start, other.end)


def _joins_label(text: str, low: str, end: int, key: str, ballot: Ballot) -> bool:
    also = _ALSO.match(low, end)
    other = also and label_at(text, low, also.end(), ballot)
    if not other or ballot.keys.get(other.letter, other.letter) == key:
        return False
    return not _SINGULAR.match(low, other.end)
