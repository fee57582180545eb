"""Whether an output says yes or no."""

from __future__ import annotations

import re

from bas_opd.answers import cues, polarity
from bas_opd.answers.answer import DEFERRED, NONE, Answer, answered
from bas_opd.answers.cleaning import clean, lowered, plain
from bas_opd.answers.language import (
    NO_OPTION,
    after_refusal,
    is_cut,
    last_correction,
    may_be_cut,
    refuses,
    sentences,
    without_questions,
)
from bas_opd.answers.sealed import Sealed, last_sealed
from bas_opd.answers.turns import read_first_turn


def yes_no(output: str, *, was_cut: bool | None = None) -> Answer:
    """Read whether an output commits to yes or to no.

    `was_cut` says whether the output reached the token limit; None if that is unknown.
    """
    text = clean(output)
    return read_first_turn(text, _read_turn, was_cut) if text else NONE


def _read_turn(text: str, was_cut: bool | None) -> Answer:
    sealed = last_sealed(text, was_cut)
    return _unsealed(sealed, was_cut) if sealed else _read(lowered(plain(text)), was_cut)


def _unsealed(sealed: Sealed, was_cut: bool | None) -> Answer:
    content = lowered(plain(sealed.content))
    if not content:
        return NONE
    if not sealed.is_closed or sealed.is_one_of_several:
        return DEFERRED
    inside, rest = _read(content, was_cut=False), _read(lowered(plain(sealed.rest)), was_cut)
    is_corrected = last_correction(sealed.rest) is not None
    if rest.status == "answered" and rest != inside:
        return rest if is_corrected else DEFERRED
    return DEFERRED if is_corrected and rest.status != "answered" else inside


def _read(low: str, was_cut: bool | None) -> Answer:
    low = polarity.LABEL.sub("", polarity.IDIOM.sub("indeed", low))
    if polarity.BOTH.search(low) or NO_OPTION.search(low):
        return DEFERRED
    was_asked = polarity.CHOICE.search(low) is not None
    low = polarity.SURROUNDINGS.sub("", without_questions(polarity.CHOICE.sub("", low)))
    if not any(char.isalnum() for char in low):
        return DEFERRED if was_asked else NONE
    if low.endswith("?"):
        return NONE if refuses(low) else DEFERRED
    low = _opened(low)
    corrected = _after_correction(low, was_cut)
    if corrected is not None:
        return corrected
    stated, lead = _stated(low), _lead(low)
    if stated is not None:
        return DEFERRED if _is_torn(lead, stated, low) else stated
    if was_cut:
        return lead or NONE
    last = _last(low)
    if lead and last and lead != last:
        return DEFERRED
    return lead or last or _described(low, was_cut)


def _is_torn(lead: Answer | None, stated: Answer, low: str) -> bool:
    """Return whether one sentence says both, with no word that turns from one to the other."""
    is_opposed = lead not in (None, NONE, stated)
    return is_opposed and len(list(sentences(low))) == 1 and not polarity.TURN.search(low)


def _opened(low: str) -> str:
    """Remove the words with which an output only begins to answer."""
    courtesy = polarity.COURTESY.match(low)
    if courtesy:
        low = re.split(r"[!,.] ?", low, maxsplit=1)[1]
    for _ in range(3):
        opener = None if polarity.WORD.match(low) else polarity.OPENER.match(low)
        if opener is None or opener.end() == len(low):
            break
        low = low[opener.end() :]
    return low


def _after_correction(low: str, was_cut: bool | None) -> Answer | None:
    """Read what an output says after it corrects itself; None if it never does."""
    turn = last_correction(low)
    if turn is None or turn.start() == 0:
        return None
    tail = low[turn.end() :].strip(" ,.:;!\n-")
    lead = polarity.WORD.fullmatch(low, 0, turn.start())
    if lead and lead["no"] and polarity.DENIES_A_CLAIM.search(turn[0]):
        return None  # "No, that is incorrect" takes nothing back
    if not tail:
        return None if "actually" in turn[0] or "sorry" in turn[0] else DEFERRED
    read = _read(tail, was_cut)
    return read if read.status == "answered" else DEFERRED


def _polarity(match: re.Match[str]) -> Answer:
    return answered("no" if match["no"] else "yes")


def _stated(low: str) -> Answer | None:
    """Read the last "the answer is yes"; two at once, or a denied one, do not count."""
    found: Answer | None = None
    stated = [*polarity.STATED.finditer(low), *polarity.CONCLUDED.finditer(low)]
    for cue in sorted(stated, key=lambda cue: cue.start()):
        is_unreal = polarity.UNREAL.search(low, max(0, cue.start() - 25), cue.start())
        if is_unreal or cues.SUPPOSED.search(low, max(0, cue.start() - 140), cue.start()):
            continue
        if polarity.NEGATED.match(low, cue.end()):
            found = NONE if refuses(low[cue.end() : cue.end() + 20]) else DEFERRED
        word = polarity.WORD.match(low, cue.end())
        if word and not (cue[0].endswith("is ") and word[0] in polarity.ALSO_PART_OF_SENTENCES):
            rest = low[word.end() : word.end() + 40]
            is_torn = _is_reversed(word, rest) or _contradicts(word, rest)
            is_torn = is_torn or cues.CONDITION.match(rest) is not None
            found = DEFERRED if is_torn else _polarity(word)
    return found


def _is_reversed(word: re.Match[str], rest: str) -> bool:
    """Return whether the other answer follows at once: "yes and no", "yes, but no"."""
    other = polarity.PLAIN.search(rest) if polarity.TURN.search(rest) else None
    return bool(polarity.GOES_ON.match(rest) or (other and bool(other["no"]) != bool(word["no"])))


def _contradicts(word: re.Match[str], rest: str) -> bool:
    """Return whether a yes is followed by a denial: "Yes, there isn't"."""
    other = polarity.NOT_THE_OTHER.match(rest)
    if other:
        return bool(other["no"]) == bool(word["no"])
    return not word["no"] and polarity.DENIAL.match(rest) is not None


def _lead(low: str) -> Answer | None:
    word = polarity.WORD.match(low)
    if not word:
        return None
    rest = low[word.end() :]
    if word[0] in polarity.ALSO_PART_OF_SENTENCES and rest[:1].isalnum() | rest.startswith(" "):
        return None
    if polarity.GOES_ON.match(rest) and not rest.startswith(" but"):
        return DEFERRED
    if cues.CONDITION.match(rest):
        return DEFERRED
    if refuses(low[: word.end() + 80]) and not polarity.TURN.search(rest):
        return NONE
    again = polarity.REPEATED.match(rest)
    if again:
        words = polarity.PLAIN.finditer(again[0])
        is_torn = any(bool(each["no"]) != bool(word["no"]) for each in words)
        return DEFERRED if is_torn else _polarity(word)
    return DEFERRED if _contradicts(word, rest) else _polarity(word)


def _last(low: str) -> Answer | None:
    """Read a last line or sentence that is nothing but a yes or a no."""
    bounds = list(sentences(low))
    start, end = bounds[-1]
    phrase = low[start:end].strip(" \n\"'().,!:*-")
    word = polarity.WORD.match(phrase)
    if word and (word.end() == len(phrase) or phrase.startswith(("yes,", "no,"))):
        return _lead(phrase)
    closing = polarity.CLOSING.search(low)
    if not closing or cues.SUPPOSED.search(low, max(0, closing.start() - 140), closing.start() + 2):
        return None
    return _polarity(closing)


def _described(low: str, was_cut: bool | None) -> Answer:
    """Read an output that states what is or is not there, without a yes or a no."""
    if refuses(low):
        low = after_refusal(low)
        return _read(low, was_cut) if low else NONE
    if is_cut(low, was_cut):
        return NONE
    if may_be_cut(low, was_cut):
        return DEFERRED
    aside = _aside(low)
    if aside and polarity.NEGATIVE.search(low, len(aside)):
        low, aside = low[len(aside) :].lstrip(), ""
    if polarity.DOUBT.search(low) or polarity.ELSEWHERE.search(low) or _double(low):
        return DEFERRED
    bounds = list(sentences(low))
    first, last = low[slice(*bounds[0])], low[slice(*bounds[-1])]
    is_negative = polarity.NEGATIVE.search(first) is not None
    if not is_negative and _only_sets_the_scene(low[: bounds[-1][0]]):
        is_negative = polarity.ABSENCE.search(last) is not None
        first = last if is_negative else first
    if polarity.AFFIRMATION.match(first) and not is_negative:
        is_alone = len(bounds) <= 2 and not (
            polarity.NEGATIVE.search(low) or polarity.LISTED.search(first)
        )
        return answered("yes") if is_alone and not polarity.DENYING.search(low) else DEFERRED
    is_mixed = aside or _turns_from_denial(low) or polarity.AFFIRMATION.match(first)
    return answered("no") if is_negative and not is_mixed else DEFERRED


def _only_sets_the_scene(low: str) -> bool:
    """Return whether sentences only describe or list, without a claim about one object."""
    claims = [low[start:end].strip() for start, end in sentences(low)]
    return bool(claims) and not any(
        polarity.AFFIRMATION.match(each) and not polarity.LISTED.search(each) for each in claims
    )


def _turns_from_denial(low: str) -> bool:
    """Return whether a word such as "but" may turn away from what was denied."""
    turn = polarity.TURN.search(low)
    return turn is not None and (
        polarity.NEGATIVE.search(low[: turn.start()]) is not None
        or polarity.NEGATIVE.search(low[turn.start() :]) is None
    )


def _aside(low: str) -> str:
    """Return how a text opens if that is an aside: "although it is not sharp, there is a dog"."""
    found = polarity.CONCEDED.match(low)
    return "" if found is None or polarity.EXISTENCE.search(found[0]) else found[0]


def _double(low: str) -> bool:
    return len(polarity.DENYING.findall(low[:400])) > 1
