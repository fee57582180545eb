"""Which option an output chooses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from bas_opd.answers import cues
from bas_opd.answers.answer import DEFERRED, NONE, Answer, answered
from bas_opd.answers.clauses import Clauses
from bas_opd.answers.cleaning import clean, lowered, plain
from bas_opd.answers.commitments import AMBIGUOUS, OUTSIDE, Reader
from bas_opd.answers.labels import (
    Label,
    has_company,
    has_own_text,
    is_contradicted,
    label_at,
    labels,
    own_text_end,
)
from bas_opd.answers.language import last_correction, sentences
from bas_opd.answers.options import Ballot
from bas_opd.answers.sealed import Sealed, last_sealed
from bas_opd.answers.turns import read_first_turn
from bas_opd.answers.verdicts import elected
from bas_opd.answers.wording import by_words

_WHOLE = re.compile(
    r"^\W{0,3}(?:(?:the (?!answer))?(?:option|choice|answer|letter|选项?"
    r"|答案)\s?:?\s?)?[(\[]?([A-Za-z])[)\].,:;!?]{0,3}$",
    re.I,
)
_LEAD_END = re.compile(
    r"[.):,;\]]|\s?[-\u2013\u2014:=](?=\s|\w)|\n|$| \(|\s?(?:because|since|as|rather than"
    r"|instead of|not|and not)\b|!"
)
_ALONE = re.compile(r"[.)\]]{1,2}(?:\s|$)|\n|$")
_LABEL_END = re.compile(r"[.):] ")
_LETTER = re.compile(r"\b[A-Z]\b")
_STATED = re.compile(
    r"(?:[Tt]he )?(?:[Ff]inal |[Cc]orrect ){0,2}"
    r"(?:[Aa]nswer|[Oo]ption|[Cc]hoice)(?: is|:) \(?([A-Z])\b"
)
_MARKS = " \n.,;:!?()[]-/&|>=→"
_LIST_GAP = re.compile(r"[^\w✓✔✅✗✘❌\u00d7]{0,6}")
_OPENING = re.compile(
    r"[^\w{]{0,3}?(?:(?:[Oo]ption|[Cc]hoice|[Aa]nswer)s? )?(?=[(\[A-Z]|[a-z]\)|[a-z]\b)"
)
_LABELLED_LINE = re.compile(r"^\(([A-Z])\) ", re.M)
_NO_MORE = re.compile(r"\W{0,3}$")
_SMALL_LABEL = re.compile(r"([a-z])[.)]?")
_SMALL_LINE = re.compile(r"^[a-z][.)]?\n", re.M)
_SMALL_HEAD = re.compile(r"([a-z])\. ")
_OFFERS = re.compile(r"\W{0,3}(?:would|do|should|can|could|are|may) (?:you|i)\b")
"""A closing offer: "Do you want to know more about the red car?"."""
_DIALOGUE = re.compile(r"^(?:q|question): [^\n]{1,2000}\na: ", re.I)
_TEXT_LEAD_END = re.compile(
    r"(?: [-\u2013\u2014] |[.!;] |\n| \()(?!or\b|maybe\b|perhaps\b|possibly\b)"
)
_PREDICATES = re.compile(
    r"\b(?:is|are|was|were|be|looks|appears|seems|it's)(?: \w{3,9}ly)?(?: an?| the)? $"
)


def choice(output: str, options: Mapping[str, str], *, was_cut: bool | None = None) -> Answer:
    """Read which of the options, letter -> text, an output commits to.

    `was_cut` says whether the output reached the token limit; None if that is unknown.
    """
    text = clean(output)
    if not text:
        return NONE
    return read_first_turn(text, partial(_read_turn, Ballot(options)), was_cut)


def _read_turn(ballot: Ballot, text: str, was_cut: bool | None) -> Answer:
    sealed = last_sealed(text, was_cut)
    if sealed is None:
        return _read(plain(text), ballot, was_cut)
    return _unsealed(sealed, ballot, was_cut)


def _unsealed(sealed: Sealed, ballot: Ballot, was_cut: bool | None) -> Answer:
    content = plain(sealed.content)
    if not content:
        return NONE
    if not sealed.is_closed or sealed.is_one_of_several:
        return DEFERRED
    inside = _read(content, ballot, was_cut=False)
    rest = _read(plain(sealed.rest), ballot, was_cut)
    if inside.status == "deferred" and rest.status == "answered":
        return rest
    if inside.status == "answered" and _differs(sealed, inside, ballot):
        return DEFERRED
    if rest.status != "answered" or rest == inside:
        return DEFERRED if last_correction(sealed.rest) else inside
    return rest if last_correction(sealed.rest) else DEFERRED


def _differs(sealed: Sealed, inside: Answer, ballot: Ballot) -> bool:
    """Return whether a text begins with another label than that of the words which it marks."""
    if _LETTER.search(sealed.content):
        return False
    stated = _STATED.match(plain(sealed.before))
    return stated is not None and ballot.keys.get(stated[1]) not in (None, inside.value)


def _read(text: str, ballot: Ballot, was_cut: bool | None) -> Answer:
    if not text:
        return NONE
    whole = _whole(text, ballot)
    if whole is not None:
        return whole if _WHOLE.match(text) or not was_cut else NONE
    if _only_letters(text, ballot):
        return DEFERRED
    text = _without_echo(_DIALOGUE.sub("", ballot.plain(text)), ballot)
    small = _SMALL_HEAD.match(text)
    if small and small[1].upper() in ballot.keys and not ballot.is_ambiguous(small[1]):
        text = text[0].upper() + text[1:]
    low = lowered(text)
    if not any(char.isalnum() for char in text):
        return DEFERRED
    if _asks_last(text, low, ballot):
        return DEFERRED
    reader = Reader(text, low, ballot, was_cut)
    stated = reader.last()
    heads = _heads(text, low, ballot)
    lead = _labelled(text, low, ballot, reader.clauses, heads)
    last = None if was_cut else _last(text, low, ballot, reader, heads, is_led=lead is not None)
    if last and "\n" in text and 0 <= reader.turned <= text.rfind("\n") + 1:
        return last  # "Wait, ..." and a last line that is a label
    if stated is not None and not stated.is_weak:
        return _verdict(stated.verdict)
    lead = lead or _worded(text, low, ballot)
    if was_cut:
        return (lead if _stands_alone(text, low, ballot) else None) or NONE
    edge = DEFERRED if lead and last and lead != last else lead or last
    if stated is not None:
        others = (edge, by_words(text, ballot, was_cut))
        is_torn = edge == DEFERRED or any(
            each and each.value not in (None, stated.verdict) for each in others
        )
        return DEFERRED if is_torn else _verdict(stated.verdict)
    if _is_outside(text, low, ballot):
        return NONE
    weighed = elected(text, low, ballot)
    if edge is not None or weighed is not None:
        is_torn = edge is not None and weighed is not None and edge.value != weighed
        is_settled = not is_torn and not reader.is_taken_back
        return (edge or answered(str(weighed))) if is_settled else DEFERRED
    if any(line[1] not in ballot.keys for line in _LABELLED_LINE.finditer(text)):
        return DEFERRED  # a list that goes on where the options end
    return by_words(text, ballot, was_cut)


def _asks_last(text: str, low: str, ballot: Ballot) -> bool:
    """Return whether a text ends with a question about an option, or is a question."""
    asked = cues.ASKS.search(low, max(0, len(low) - 200), len(low) - 1) if low[-1] == "?" else None
    if asked is None:
        return False
    question = low[asked.start() :]
    is_whole = asked.start() == 0
    if not is_whole and _OFFERS.match(question):
        return False
    return is_whole or bool(
        ballot.mentions(question) or labels(text[asked.start() :], question, ballot)
    )


def _verdict(verdict: str) -> Answer:
    return {AMBIGUOUS: DEFERRED, OUTSIDE: NONE}.get(verdict) or answered(verdict)


def _whole(text: str, ballot: Ballot) -> Answer | None:
    """Read an output that is nothing but a letter or the text of an option."""
    match = _WHOLE.match(text)
    if match:
        letter = match[1].upper()
        if match[1].islower() and ballot.is_ambiguous(match[1]):
            return DEFERRED
        if letter in ballot.keys:
            return answered(ballot.keys[letter])
        named = ballot.exact(match[1])
        return answered(named) if named else NONE
    named = ballot.exact(text)
    return answered(named) if named else None


def _only_letters(text: str, ballot: Ballot) -> bool:
    """Return whether an output is several letters of the options and nothing else ("B? C?")."""
    letters = _LETTER.findall(text)
    label = label_at(text, lowered(text), 0, ballot)
    if label and has_own_text(lowered(text), label, ballot):
        return False
    if len(set(letters)) < 2 or _LETTER.sub("", text).strip(_MARKS):
        return False
    return all(each in ballot.keys and not ballot.exact(each) for each in letters)


def _without_echo(text: str, ballot: Ballot) -> str:
    """Remove the list of options if an output repeats it before it answers."""
    low = lowered(text)
    if not all(each in low for each in ballot.texts.values()):
        return text
    run: list[Label] = []
    for label in labels(text, low, ballot):
        if not has_own_text(low, label, ballot) or label.letter in {each.letter for each in run}:
            continue
        between = text[own_text_end(low, run[-1], ballot) : label.start] if run else ""
        run = [*run, label] if _LIST_GAP.fullmatch(between) else [label]
        if len(run) == len(ballot.keys) > 1:
            end = own_text_end(low, label, ballot)
            return f"{text[: run[0].start]}\n{text[end:].lstrip(' .;,)')}".strip()
    return text


def _last(
    text: str, low: str, ballot: Ballot, reader: Reader, heads: list[Label], *, is_led: bool
) -> Answer | None:
    """Read an output whose last line or sentence is a label, or the text of an option."""
    last = None
    starts = {start for start, _ in list(sentences(text))[-2:]} | {text.rfind("\n") + 1}
    opening = label_at(text, low, 0, ballot)
    settled = own_text_end(low, opening, ballot) if opening else 0
    listed = [
        each
        for each in heads
        if each.start >= reader.turned and not reader.clauses.deny(each.start, each.end)
    ]
    for start in sorted(start for start in starts if start >= max(settled, 1)):
        label = label_at(text, low, start + (text[start : start + 1] == " "), ballot)
        is_last = label and _NO_MORE.match(text, own_text_end(low, label, ballot))
        is_announced = text[:start].rstrip().endswith(":")
        if label and is_last and (is_led or is_announced or not _is_item(label, listed)):
            last = _checked(text, low, label, ballot)
    if last is None and "\n" in text:
        line = text[text.rfind("\n") + 1 :]
        small = None if _SMALL_LINE.search(text) else _SMALL_LABEL.fullmatch(line)
        if small and not ballot.is_ambiguous(small[1]) and small[1].upper() in ballot.keys:
            return answered(ballot.keys[small[1].upper()])
        named = ballot.exact(line)
        last = answered(named) if named else None
    return last


def _heads(text: str, low: str, ballot: Ballot) -> list[Label]:
    """Find the labels that begin a sentence or a line and are separate from what follows."""
    found = []
    for start, _ in sentences(text):
        if found and start < own_text_end(low, found[-1], ballot):
            continue
        opening = _OPENING.match(text, start + (text[start : start + 1] == " "))
        label = opening and label_at(text, low, opening.end(), ballot)
        if label and _LEAD_END.match(low, label.end) and not has_company(text, low, label, ballot):
            found.append(label)
    return found


def _is_item(label: Label, heads: list[Label]) -> bool:
    """Return whether a label that ends a text continues a list of other options."""
    return any(each.letter != label.letter for each in heads)


def _worded(text: str, low: str, ballot: Ballot) -> Answer | None:
    """Read an output that begins with the text of an option and then explains it."""
    named = None if ballot.is_numeric else ballot.text_at(low, 0)
    apart = named and _TEXT_LEAD_END.match(low, named.end)
    if named is None or apart is None or len(low[apart.end() : apart.end() + 60].split()) < 4:
        return None
    label = label_at(text, low, named.end + 1, ballot)
    if label and ballot.keys.get(label.letter, named.key) != named.key:
        return DEFERRED  # "blue (C)"
    others = [each for each in ballot.mentions(low) if each.key != named.key]
    is_torn = any(_PREDICATES.search(low, max(0, each.start - 30), each.start) for each in others)
    return DEFERRED if is_torn else answered(named.key)


def _labelled(
    text: str, low: str, ballot: Ballot, clauses: Clauses, heads: list[Label]
) -> Answer | None:
    opening = _OPENING.match(text)
    label = opening and label_at(text, low, opening.end(), ballot)
    if not label:
        return None
    end = own_text_end(low, label, ballot)
    if clauses.deny(label.start, end) and not is_contradicted(low, label, ballot):
        return None
    if not (_LEAD_END.match(low, label.end) or end > label.end):
        return None
    if _is_item(label, heads) and not text.startswith("\n", label.end):
        return None
    return _checked(text, low, label, ballot)


def _is_outside(text: str, low: str, ballot: Ballot) -> bool:
    """Return whether a line is an option that was not offered ("(E) 60")."""
    label = label_at(text, low, 0, ballot)
    if not label or label.letter in ballot.keys or "\n" in text or ballot.exact(label.letter):
        return False
    is_labelled = label.is_bracketed or _LABEL_END.match(low, label.end)
    return bool(is_labelled) and not ballot.mentions(low) and not labels(text, low, ballot)


def _stands_alone(text: str, low: str, ballot: Ballot) -> bool:
    """Return whether the first label is an answer by itself, and no heading ("Option A: red")."""
    opening = _OPENING.match(text)
    label = opening and label_at(text, low, opening.end(), ballot)
    if not label:
        return True
    end = own_text_end(low, label, ballot)
    return not low.startswith(":", label.end) and _ALONE.match(low, end) is not None


def _checked(text: str, low: str, label: Label, ballot: Ballot) -> Answer | None:
    if label.letter not in ballot.keys or has_company(text, low, label, ballot):
        return None
    if is_contradicted(low, label, ballot):
        return DEFERRED
    return answered(ballot.keys[label.letter])
