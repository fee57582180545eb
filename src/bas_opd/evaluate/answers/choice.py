"""Which option an output chooses."""

from __future__ import annotations

import re
from collections.abc import Mapping

from bas_opd.evaluate.answers.answer import DEFERRED, NONE, Answer, answered
from bas_opd.evaluate.answers.cleaning import clean, lowered, plain
from bas_opd.evaluate.answers.commitments import AMBIGUOUS, OUTSIDE, Reader
from bas_opd.evaluate.answers.labels import (
    Label,
    has_company,
    has_own_text,
    is_contradicted,
    label_at,
    labels,
    own_text_end,
)
from bas_opd.evaluate.answers.language import last_correction, sentences
from bas_opd.evaluate.answers.options import Ballot, Clauses
from bas_opd.evaluate.answers.sealed import Sealed, last_sealed
from bas_opd.evaluate.answers.wording import by_words

_WHOLE = re.compile(
    r"^\W{0,3}(?:(?:option|choice|answer|letter|选项?|答案)\s?:?\s?)?[(\[]?([A-Za-z])[)\].,:;!?]{0,3}$",
    re.I,
)
_LEAD_END = re.compile(
    r"[.):,;\]]|\s?[-\u2013\u2014:=](?=\s|\w)|\n|$| \(|\s?(?:because|since|as|rather than"
    r"|instead of|not|and not)\b|!"
)
_LIST_MARK = re.compile(r"(?:or|and|/|,|&)\W{0,4}$", re.I)
_LIST_GAP = re.compile(r"[^\w✓✔✅✗✘❌\u00d7]{0,6}")
_LINE_START = re.compile(r"\n")
_OPENING = re.compile(
    r"[^\w{]{0,3}?(?:(?:[Oo]ption|[Cc]hoice|[Aa]nswer)s? )?(?=[(\[A-Z]|[a-z]\)|[a-z]\b)"
)
_NO_MORE = re.compile(r"\W{0,3}$")


def choice(output: str, options: Mapping[str, str]) -> Answer:
    """Read which of the options, letter -> text, an output commits to."""
    text = clean(output)
    if not text:
        return NONE
    ballot = Ballot(options)
    sealed = last_sealed(text)
    return _unsealed(sealed, ballot) if sealed else _read(plain(text), ballot)


def _unsealed(sealed: Sealed, ballot: Ballot) -> Answer:
    content = plain(sealed.content)
    if not content:
        return NONE
    if not sealed.is_closed or (len(sealed.before) < 80 and _LIST_MARK.search(sealed.before)):
        return DEFERRED
    inside = _read(content, ballot)
    rest = _read(plain(sealed.rest), ballot)
    if rest.status != "answered" or rest == inside:
        return DEFERRED if last_correction(sealed.rest) else inside
    return rest if last_correction(sealed.rest) else DEFERRED


def _read(text: str, ballot: Ballot) -> Answer:
    if not text:
        return NONE
    whole = _whole(text, ballot)
    if whole is not None:
        return whole
    text = _without_echo(text, ballot)
    low = lowered(text)
    if not any(char.isalnum() for char in text):
        return DEFERRED
    reader = Reader(text, low, ballot)
    stated = reader.last()
    edge = _edge(text, low, ballot, reader.clauses)
    if stated is not None:
        if stated.is_weak and edge is not None and edge.value != stated.verdict:
            return DEFERRED
        return _verdict(stated.verdict)
    if edge is not None:
        return DEFERRED if reader.is_taken_back else edge
    return by_words(text, ballot)


def _verdict(verdict: str) -> Answer:
    return {AMBIGUOUS: DEFERRED, OUTSIDE: NONE}.get(verdict) or answered(verdict)


def _whole(text: str, ballot: Ballot) -> Answer | None:
    """Read an output that is nothing but a letter or the text of an option."""
    match = _WHOLE.match(text)
    if match:
        letter = match[1].upper()
        bare = text.strip(" .") == match[1]
        if bare and ballot.is_ambiguous(match[1]):
            return DEFERRED
        if letter in ballot.keys:
            return answered(ballot.keys[letter])
        named = ballot.exact(match[1])
        return answered(named) if named else NONE
    named = ballot.exact(text)
    return answered(named) if named else None


def _without_echo(text: str, ballot: Ballot) -> str:
    """Leave out the list of options where an output repeats it before it answers."""
    low = lowered(text)
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


def _edge(text: str, low: str, ballot: Ballot, clauses: Clauses) -> Answer | None:
    """Read an output that begins with a label, or whose last line or sentence is one."""
    lead = _labelled(text, low, ballot, clauses)
    last = None
    starts = {start for start, _ in list(sentences(text))[-2:]} | {text.rfind("\n") + 1}
    opening = label_at(text, low, 0, ballot)
    settled = own_text_end(low, opening, ballot) if opening else 0
    for start in sorted(start for start in starts if start >= max(settled, 1)):
        label = label_at(text, low, start + (text[start : start + 1] == " "), ballot)
        if label and _NO_MORE.match(text, own_text_end(low, label, ballot)):
            last = _checked(text, low, label, ballot)
    if last is None and "\n" in text:
        named = ballot.exact(text[text.rfind("\n") + 1 :])
        last = answered(named) if named else None
    if lead and last and lead != last:
        return DEFERRED
    return lead or last


def _labelled(text: str, low: str, ballot: Ballot, clauses: Clauses) -> Answer | None:
    opening = _OPENING.match(text)
    label = opening and label_at(text, low, opening.end(), ballot)
    if not label or clauses.deny(label.start, label.end):
        return None
    if not (_LEAD_END.match(low, label.end) or has_own_text(low, label, ballot)):
        return None
    listed = (label_at(text, low, line.end(), ballot) for line in _LINE_START.finditer(text))
    if any(
        each and each.letter != label.letter and _LEAD_END.match(low, each.end) for each in listed
    ):
        return _checked(text, low, label, ballot) if text.startswith("\n", label.end) else None
    return _checked(text, low, label, ballot)


def _checked(text: str, low: str, label: Label, ballot: Ballot) -> Answer | None:
    if label.letter not in ballot.keys or has_company(text, low, label, ballot):
        return None
    if is_contradicted(low, label, ballot):
        return DEFERRED
    return answered(ballot.keys[label.letter])
