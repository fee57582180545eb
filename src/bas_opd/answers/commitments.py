"""Statements that choose: "the answer is C", "so B", "A is correct", "wait, actually D"."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from bas_opd.answers import cues
from bas_opd.answers.clauses import Clauses
from bas_opd.answers.labels import (
    Label,
    has_company,
    is_contradicted,
    is_name,
    joins_another,
    label_at,
    labels,
    own_text_end,
)
from bas_opd.answers.language import CLAUSE_END, CORRECTION, NEGATION, is_cut, sentences
from bas_opd.answers.options import Ballot

AMBIGUOUS = "?"
"""The verdict of a statement that names several options, or something that may be one."""
OUTSIDE = "!"
"""The verdict of a statement that names a letter no option has."""

_MOST_STATEMENTS = 200
"""Most statements of each kind, from the end: earlier ones do not count, and time is bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commitment:
    """A statement that chooses an option."""

    place: int
    verdict: str
    is_weak: bool
    is_hedged: bool


class Reader:
    """Finds the statements of one output that choose."""

    def __init__(self, text: str, low: str, ballot: Ballot, was_cut: bool | None) -> None:
        self._text, self._low, self._ballot, self._was_cut = text, low, ballot, was_cut
        self.clauses = Clauses(low)
        self.turned = max((match.end() for match in CORRECTION.finditer(low)), default=-1)
        """Where the last correction ends; -1 if there is none."""
        self.is_taken_back = False

    def last(self) -> Commitment | None:
        """Return the statement that counts: the last one, if not retracted or contradicted."""
        confirmed, announced = self._confirmed(), self._announced()
        found = sorted(
            [*announced, *confirmed],
            key=lambda each: (each.place, not each.is_weak),
        )
        turned = self.turned
        self.is_taken_back = turned > 3 and not any(each.place >= turned - 1 for each in found)
        if not found:
            return None
        last = next((each for each in reversed(found) if not each.is_weak), found[-1])
        if found[-1].is_weak and found[-1].verdict != last.verdict:
            is_settled = found[-1].place >= turned > last.place or last.is_hedged
            last = found[-1] if is_settled else self._torn_at(last.place)
        firm = {each.verdict for each in found if not each.is_hedged}
        hedged = {each.verdict for each in found if each.is_hedged}
        stated = {each.verdict for each in announced if not each.is_weak}
        is_one_of_several = last in confirmed and len({each.verdict for each in confirmed}) > 1
        is_torn = is_one_of_several and turned < 0 and stated != {last.verdict}
        is_torn |= turned < 0 and len(stated - {AMBIGUOUS, OUTSIDE}) > 2
        is_torn |= last.is_hedged and (len(hedged) > 1 or bool(firm - hedged))
        if is_torn or self.is_taken_back or self._ends_with_several(last.place):
            return self._torn_at(last.place)
        return last

    def _ends_with_several(self, place: int) -> bool:
        """Return whether a last sentence after a place names several options at once."""
        *_, (start, end) = [(0, 0), *sentences(self._text[-600:])]
        offset = max(0, len(self._text) - 600)
        text, low = self._text[offset + start : offset + end], self._low[offset + start :]
        return offset + start > place and any(
            has_company(text, low, each, self._ballot) and cues.IS.search(low, 0, each.start)
            for each in labels(text, low[: len(text)], self._ballot)
        )

    @staticmethod
    def _torn_at(place: int) -> Commitment:
        return Commitment(place=place, verdict=AMBIGUOUS, is_weak=False, is_hedged=False)

    def _announced(self) -> list[Commitment]:
        """Find options after words that announce one."""
        found: dict[int, Commitment] = {}
        for cue, strength in (
            (cues.POINTER, 0),
            (cues.CONCLUSION, 1),
            (CORRECTION, 2),
            (cues.HEADING, 3),
            (cues.ANSWER, 3),
        ):
            for match in deque(cue.finditer(self._low), maxlen=_MOST_STATEMENTS):
                gap = cues.GAP.match(self._low, match.end())
                place = gap.end() if gap else match.end()
                said = match[0] + self._low[match.end() : place]
                if cues.DENIED.search(said):
                    continue
                if match[0].startswith("right one") and "left" in self._low:
                    continue  # the one on the right
                if strength == 0 and "\n" in said:
                    continue  # what "matches" ends a line, and the next begins with a label
                if "\n" in said and self._is_listed(place):
                    if strength == 3 and self._is_item(place):
                        found[place] = self._torn_at(place)
                    continue
                is_opinion = strength == 3 and cues.OPINION.match(match[0]) is not None
                verdict = self._object(place, strength, said, is_opinion=is_opinion)
                if verdict is not None and not self._is_idle(match.start(), place):
                    is_labelled = label_at(self._text, self._low, place, self._ballot) is not None
                    found[place] = Commitment(
                        place=place,
                        verdict=verdict,
                        is_weak=strength < (3 if self._was_cut else 2)
                        or (is_opinion and not is_labelled),
                        is_hedged=bool(cues.HEDGE.search(self.clauses.around(place, place)[0])),
                    )
        return list(found.values())

    def _is_listed(self, place: int) -> bool:
        """Return whether a line with a label is followed by another such line."""
        after = self._low.find("\n", place) + 1
        return after > 0 and label_at(self._text, self._low, after, self._ballot) is not None

    def _is_item(self, place: int) -> bool:
        """Return whether a line is a label with no more than its text."""
        label = label_at(self._text, self._low, place, self._ballot)
        end = own_text_end(self._low, label, self._ballot) if label else -1
        return end >= 0 and self._low.startswith("\n", end)

    def _is_idle(self, start: int, end: int) -> bool:
        """Return whether a statement is denied, hypothetical or a question."""
        turns = self._low[start] != ":" and CLAUSE_END.match(self._low, start)
        before = "" if turns else self.clauses.around(start, start + 1)[0]
        if NEGATION.search(before) or cues.UNREAL.search(before):
            return True
        if cues.SUPPOSED.search(self._low, max(0, start - 140), start):
            return True
        if cues.CHOOSE_IF.search(self._low, start, end + 80):
            return True
        ending = cues.SENTENCE_MARK.search(self._text, end, end + 200)
        if ending is None or ending[0] != "?":
            return False
        asks = cues.ASKS.search(self._low, max(0, start - 120), end)
        return asks is not None or ending.end() < len(self._text)

    def _object(self, place: int, strength: int, said: str, *, is_opinion: bool) -> str | None:
        label = label_at(self._text, self._low, place, self._ballot)
        if label is None and strength == 3:
            label = self._small_letter(place, said)
        if label is not None:
            return self._labelled(label, strength)
        named = self._ballot.text_at(self._low, place) if strength else None
        if named and self._was_cut and named.end == len(self._low):
            return None
        if named and cues.TEXT_END.match(self._low, named.end):
            is_one = not joins_another(self._text, self._low, named.end, named.key, self._ballot)
            return named.key if is_one else AMBIGUOUS if strength == 3 else None
        return self._described(place, is_opinion=is_opinion) if strength == 3 else None

    def _small_letter(self, place: int, said: str) -> Label | None:
        """Read "answer: b"; "the answer is a" may have lost its noun."""
        match = cues.SMALL_LETTER.match(self._text, place)
        if match is None or (
            match[1] == "a" and match.end() == len(self._text) and ":" not in said
        ):
            return None
        return Label(letter=match[1].upper(), start=place, end=match.end(), is_bracketed=False)

    def _labelled(self, label: Label, strength: int) -> str | None:
        text, low, ballot = self._text, self._low, self._ballot
        letter = text[label.start : label.end].strip("()[] ")
        is_bare = strength < 3 and not label.is_bracketed
        if (is_bare or letter.islower()) and ballot.is_ambiguous(letter):
            return AMBIGUOUS
        if label.letter not in ballot.keys:
            named = ballot.exact(letter)
            return named or (OUTSIDE if strength >= 2 else None)
        is_supposed = cues.CONDITION.match(low, own_text_end(low, label, ballot))
        is_one_of_several = has_company(text, low, label, ballot)
        if is_supposed or is_one_of_several or is_contradicted(low, label, ballot):
            return AMBIGUOUS
        _, after = self.clauses.around(label.start, own_text_end(low, label, ballot))
        if cues.DENIED_LABEL.match(after):
            return None
        return ballot.keys[label.letter]

    def _described(self, place: int, *, is_opinion: bool) -> str | None:
        """Read what an answer is said to be in words of its own."""
        end = next(
            (stop for start, stop in sentences(self._text[place : place + 600]) if stop > 0), 0
        )
        if self._was_cut and place + end == len(self._low):
            return None
        phrase = self._low[place : place + end]
        named = {
            self._ballot.keys[each.letter]
            for each in labels(self._text[place : place + end], phrase, self._ballot)
            if not self.clauses.deny(place + each.start, place + each.end)
        } | {
            each.key or AMBIGUOUS
            for each in self._ballot.mentions(phrase)
            if not self.clauses.deny(place + each.start, place + each.end)
        }
        if named:
            return named.pop() if len(named) == 1 else AMBIGUOUS
        is_told = any(map(str.isalnum, phrase)) and not is_cut(phrase, self._was_cut)
        is_open = is_told and len(phrase.split()) <= 5
        return AMBIGUOUS if is_open and not is_opinion and not cues.VAGUE.match(phrase) else None

    def _is_confirmed(self, label: Label) -> bool:
        end = own_text_end(self._low, label, self._ballot)
        is_right = cues.RIGHT.match(self._low, label.end)
        if is_right is None and end > label.end:
            is_bracketed = self._low.startswith(")", end)
            pattern = cues.RIGHT if is_bracketed else cues.RIGHT_AFTER_TEXT
            is_right = pattern.match(self._low, end + is_bracketed)
        if is_right is None or (self._was_cut and not cues.FIRM.search(is_right[0])):
            return False
        is_limited = cues.CONDITION.match(self._low, is_right.end())
        return not (is_limited or cues.PARTLY.match(self._low, is_right.end()))

    def _ends_own_text(self, label: Label) -> bool:
        """Return whether a letter ends the text of its own option ("Point B")."""
        text = self._ballot.texts.get(self._ballot.keys[label.letter], "")
        return len(text) > 1 and self._low.endswith(text, 0, label.end)

    def _confirmed(self) -> list[Commitment]:
        """Find options that are said to be right."""
        found = []
        for label in labels(self._text, self._low, self._ballot):
            if not self._is_confirmed(label) or is_contradicted(self._low, label, self._ballot):
                continue
            if is_name(self._text, label, self._ballot) and not self._ends_own_text(label):
                continue
            before, after = self.clauses.around(label.start, label.end)
            is_denied = NEGATION.search(before) or cues.NOT_SOON.match(after)
            if is_denied or self._is_idle(label.start, label.end):
                continue
            run = cues.RUN.search(self._low, max(0, label.start - 60), label.start)
            if run and NEGATION.search(self._low, max(0, run.start() - 20), run.start()):
                continue
            letter = self._text[label.start : label.end].strip("()[] ")
            is_torn = run or (letter.islower() and self._ballot.is_ambiguous(letter))
            found.append(
                Commitment(
                    place=label.start,
                    verdict=AMBIGUOUS if is_torn else self._ballot.keys[label.letter],
                    is_weak=False,
                    is_hedged=bool(cues.HEDGE.search(before + after[:20])),
                )
            )
        return found
